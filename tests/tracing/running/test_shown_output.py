"""What a program prints: shown where it is asked for, its last lines where something goes wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial

import pytest
from program_runs import Program, run_planner

TRAINS = """
import sys, torch
print("reading", "data" * 2)
print("no warm-up", file=sys.stderr)
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for number in range(3):
    layer(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
NEEDS_DATA = (
    'import argparse\nparser = argparse.ArgumentParser(prog="t")\nparser.add_argument("--data", required=True)\n'
)


Planned = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def planned(capfd: pytest.CaptureFixture[str]) -> Planned:
    return partial(run_planner, capfd, "run")


def test_it_is_shown_beside_the_answer(program: Program, planned: Planned) -> None:
    path = program(TRAINS + 'print("done", end="")')

    shown = planned("--show-output", "--format", "json", "--", "python", path)
    silent = planned("--format", "json", "--", "python", path)

    assert (json.loads(shown.stdout)["verdict"], shown.stderr.splitlines()) == (
        "fits", ["reading datadata", "no warm-up", "done"],
    )  # fmt: skip
    assert silent.stderr == ""


def test_lines_of_several_ranks_say_whose_they_are(program: Program, planned: Planned) -> None:
    path = program(TRAINS)

    shown = planned("--show-output", "--ranks", "0,3", "--", "torchrun", "--nproc-per-node", "4", path)

    assert shown.stderr.splitlines() == [
        f"[rank {rank}] {line}" for rank in (0, 3) for line in ("reading datadata", "no warm-up")
    ]


@pytest.mark.parametrize(
    ("lines", "said", "problem"),
    [
        (
            NEEDS_DATA + "parser.parse_args()",
            ["usage: t [-h] --data DATA"],
            "ended its process on rank 0 with exit code 2",
        ),
        (
            "print('reading')\nraise ValueError('no data')",
            ["reading"],
            "error of its own on rank 0: ValueError: no data",
        ),
        ("for n in range(30): print('line', n)\nraise ValueError", [f"line {n}" for n in range(10, 30)], "ValueError"),
        ("print('nothing to train')", ["nothing to train"], "the program"),
        (TRAINS + "print('saving')\nraise OSError('full')", ["reading datadata", "no warm-up", "saving"], ""),
    ],
)
def test_its_last_lines_stand_before_an_error(
    program: Program, planned: Planned, lines: str, said: list[str], problem: str
) -> None:
    path = program(lines)

    found, shown = planned("--", "python", path), planned("--show-output", "--", "python", path)

    before, _, after = found.stderr.partition("--- the program's last output ---\n")
    assert before == ""
    assert after.splitlines()[: len(said)] == said
    assert problem in after
    assert "the program's last output" not in shown.stderr

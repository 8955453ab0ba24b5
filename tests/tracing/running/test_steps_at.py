"""A program's loop is made to count to later steps, without a change of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError
from planner.tracing.program.rank_orders import RankRun

HEAD = """
import sys, torch
model = torch.nn.Linear(4096, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = open(sys.argv[1], "a")

def train(step):
    print(step, file=seen, flush=True)
    rows = (4096, 1024, 8192)[step // 900]
    model(torch.zeros(rows, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

"""
MIB = 2**20
RANGE = "for step in range(2000):\n    train(step)\n"
LOOPS = {
    "range": RANGE,
    "after a warm-up": "for step in range(2000):\n    if step > 1: break\n    train(0)\nseen.truncate(0)\n" + RANGE,
    "enumerate, in epochs": "for epoch in range(9):\n    for step, _ in enumerate('data'):\n        train(step)\n",
    "while": "step = 0\nwhile step < 2000:\n    train(step)\n    step += 1\n",
    "a counter beside data": "step = 0\nfor _ in 'long data' * 9:\n    train(step)\n    step += 1\n",
    "two counters": "iter_num = 0\nlocal_iter = 0\nwhile True:\n    train(iter_num)\n    iter_num += 1\n"
    "    local_iter += 1\n    assert local_iter == iter_num\n",
}


@pytest.fixture
def at(run: Run, program: Program, tmp_path: Path) -> Callable[..., tuple[RankRun, list[int]]]:
    def run_at(steps: tuple[int, ...], lines: str, head: str = HEAD) -> tuple[RankRun, list[int]]:
        """The run, and the numbers with which the program trained."""
        written = tmp_path / "seen"
        found = run(f"python {program(head + lines)} {written}", steps_at=steps)
        return found, [int(line) for line in written.read_text().replace("\0", "").split()]

    return run_at


@pytest.mark.parametrize("loop", LOOPS)
def test_three_iterations_are_run_at_each_step(at: Callable[..., tuple[RankRun, list[int]]], loop: str) -> None:
    found, numbers = at((0, 900, 1800), LOOPS[loop])

    assert numbers == [0, 1, 2, 900, 901, 902, 1800, 1801, 1802]
    assert found.ending == "ended after the steps that were asked for"
    assert [each.step for each in found.steps_at] == [0, 900, 1800]


def test_the_peak_of_each_step_is_its_own(at: Callable[..., tuple[RankRun, list[int]]]) -> None:
    found, _ = at((0, 900, 1800), RANGE)

    first, second, third = (each.allocated_bytes for each in found.steps_at)
    rows = 4096 * 4
    assert (first - second, third - first) == (2 * 3072 * rows, 2 * 4096 * rows)  # an input, and an output
    reserved = [each.reserved_bytes for each in found.steps_at]
    assert reserved == sorted(reserved)


def test_micro_batches_are_counted_on_until_the_optimizer_has_stepped(
    at: Callable[..., tuple[RankRun, list[int]]],
) -> None:
    _, numbers = at((0, 900), RANGE, HEAD.replace("    optimizer.step()", "    if step % 4 == 3: optimizer.step()"))

    assert numbers == [*range(12), *range(900, 912)]


def test_a_counter_of_an_object_and_one_beside_the_loops_own(at: Callable[..., tuple[RankRun, list[int]]]) -> None:
    trainer = """
class Trainer:
    global_step = 0

    def fit(self, data):
        for batch in data:
            self.training_step()

    def training_step(self):
        train(self.global_step)
        self.global_step += 1

Trainer().fit("long data" * 9)
"""
    _, numbers = at((900,), trainer)
    assert numbers == [0, 900, 901, 902]

    beside = "global_step = 0\nfor i, _ in enumerate('data' * 9):\n    train(global_step)\n    global_step += 1\n"
    _, numbers = at((0, 900), beside)
    assert numbers[-6:] == [0, 1, 2, 900, 901, 902]


def test_a_module_of_the_program_is_counted_too(run: Run, program: Program, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("def fit(train):\n    for step in range(2000):\n        train(step)\n")
    written = tmp_path / "seen"

    found = run(f"python {program(HEAD + 'import loop; loop.fit(train)')} {written}", steps_at=(0, 1800))

    assert [each.step for each in found.steps_at] == [0, 1800]


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (
            "for step in range(500):\n    train(0)\n",
            r"no loop counted to 0, 900: the one at .*:14 counts from 0 to 499",
        ),
        ("for batch in 'data':\n    train(0)\n", "no loop was found that trains and counts its iterations"),
    ],
)
def test_what_cannot_count_to_them_is_refused(
    at: Callable[..., tuple[RankRun, list[int]]], loop: str, said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        at((0, 900), loop)

"""Programs that fail after they had trained: the report is there, with the failure beside it."""

from __future__ import annotations

import pytest
from program_runs import Program, Run, run_planner

from planner.tracing.program.rank_process import CrashedError

TRAINS = """
import sys, torch
layer = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
def step():
    layer(torch.ones(2, 1024, device="cuda")).sum().backward()
    optimizer.step()
for number in range({steps}):
    step()
"""


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("raise ValueError('no data')", "ValueError: no data"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("open('/nowhere/model.pt')", "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/model.pt'"),
    ],
)
def test_what_it_did_before_is_reported(run: Run, program: Program, fails: str, said: str) -> None:
    whole = run(f"python {program(TRAINS.format(steps=5))}", patience=60)
    found = run(f"python {program(TRAINS.format(steps=5) + fails)}", patience=60)

    assert found.ending.startswith(f"the program failed after 5 iterations: {said} (")
    assert found.ending.endswith("/program.py:10)")
    assert (found.iterations, found.is_whole, found.counted) == (5, False, whole.counted)
    (failure,) = found.failed
    assert (failure.said, failure.text.splitlines()[-1]) == (said, said)


def test_one_that_fails_in_its_first_step_has_no_report(run: Run, program: Program) -> None:
    path = program(TRAINS.format(steps=1) + "raise ValueError('no data')")

    with pytest.raises(CrashedError, match="ended with an error of its own on rank 0: ValueError: no data"):
        run(f"python {path}")


def test_the_command_prints_the_report_and_the_traceback(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    path = program(TRAINS.format(steps=5) + "raise ValueError('no data')")

    ended = run_planner(capfd, "run", "--patience", "60", "--", "python", path)

    assert ended.returncode == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    assert "the program failed after 5 iterations: ValueError: no data" in said
    assert "what comes after that is in no figure" in said
    assert "Fits: " in said
    assert "--- the program's own traceback ---" in ended.stderr
    assert "ValueError: no data" in ended.stderr

"""Programs that ask for the size of their terminal, as the most copied script of CIFAR does in its first lines."""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from program_runs import Program, run_planner

ASKS = """
import os, shutil, sys
_, term_width = os.popen('stty size', 'r').read().split()
term_width = int(term_width)
print(term_width, shutil.get_terminal_size().columns, repr(sys.stdin.read()))
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for number in range(3):
    layer(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@contextmanager
def standard_input(descriptor: int) -> Iterator[None]:
    before = os.dup(0)
    os.dup2(descriptor, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.fixture
def terminal() -> Iterator[int]:
    """Of 33 lines and 123 columns."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (33, 123))
    yield theirs
    os.close(theirs)
    os.close(ours)


@pytest.fixture
def nothing() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("user_has", "columns"), [("terminal", 123), ("nothing", 80)])
def test_it_is_as_wide_as_that_of_the_user(
    user_has: str, columns: int, program: Program, capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)

    with standard_input(request.getfixturevalue(user_has)):
        found = run_planner(capfd, "run", "--show-output", "--", "python", program(ASKS))

    assert (found.returncode, found.stderr) == (0, f"{columns} {columns} ''\n")

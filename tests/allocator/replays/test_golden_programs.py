"""Programs in tests/golden/replays: each command, and under it what the allocator does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-it-works.md"
PROGRAMS = sorted((Path(__file__).parents[2] / "golden" / "replays").glob("*.txt"))


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 14


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_allocator_does_what_the_program_says(path: Path, program: Callable[[str], str]) -> None:
    written = path.read_text()

    assert program(written) == written


def test_the_programs_in_the_documentation_run_as_printed(program: Callable[[str], str]) -> None:
    printed = re.findall(r"```\n((?:[#>] ).*?)```", PAGE.read_text(), re.DOTALL)

    assert len(printed) == 2
    for written in printed:
        ran = program(written).splitlines(keepends=True)
        assert "".join(line for line in ran if not line.startswith("=")) == written

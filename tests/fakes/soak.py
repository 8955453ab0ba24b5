"""Which tests, and how many of a test's many cases, CI takes: `make soak` (PLANNER_SOAK=whole) takes all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "soak_cases.txt"


def share(whole: int, in_ci: int) -> int:
    """All of the cases where they are asked for, else as many as CI has time for."""
    return whole if os.environ.get("PLANNER_SOAK") == "whole" else in_ci


def mark_soak_cases(items: Sequence[pytest.Item], listed: str, *, of_whole_files: bool) -> None:
    """Marks the tests that are listed, but for those that a later line leaves to CI. Raises UsageError for a line
    without a test: of a file that is not there or, where whole files were collected, that has no such test."""
    files = {item.nodeid.partition("::")[0] for item in items}
    chosen: set[pytest.Item] = set()
    for number, line in enumerate(listed.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        id_ = line.removeprefix("but ")
        file = id_.partition("::")[0]
        found = {item for item in items if _stands_for(id_, item.nodeid)} if file in files else set()
        if not found and (not (LIST.parents[1] / file).exists() or (of_whole_files and file in files)):
            raise pytest.UsageError(
                f"tests/{LIST.name}, line {number}: no test is {id_!r}\n  allowed: ids of tests, with * for anything\n"
                "  change:  write the id that it has now, or take the line out"
            )
        chosen = chosen - found if line.startswith("but ") else chosen | found
    for item in chosen:
        item.add_marker("soak")


def _stands_for(id_: str, nodeid: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in id_.split("*"))
    return re.fullmatch(rf"{pattern}(::.*|\[.*)?", nodeid, re.DOTALL) is not None

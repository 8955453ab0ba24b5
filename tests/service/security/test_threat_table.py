"""docs/reference/threats.md: every named test exists, and every threat but a known one names a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "threats.md").read_text(encoding="utf-8")
THREATS = re.findall(
    r"^\| (?!threat \||---)(.+?) \| (.+?) \| (.*?) ?\|$", PAGE.partition("\n## Threats\n")[2], re.MULTILINE
)
NAMED = sorted({name for *_, tests in THREATS for name in re.findall(r"`([^`]+)`", tests)})


@cache
def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, name = named.partition("::")

    assert name.startswith("test_")
    assert name in names_in(ROOT / file)


def test_every_threat_has_a_test_but_for_one_that_says_so() -> None:
    without = [threat for threat, _, tests in THREATS if not tests]

    assert len(THREATS) > 50
    assert without == ["a program lies about its own memory", "another plan's id on a job"]


def test_every_test_of_this_room_is_named() -> None:
    """Here stand only tests that hold a row of the table, and those that show that such a test can fail."""
    here = {
        f"tests/service/security/{path.name}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for name in names_in(path)
        if name.startswith("test_") and not name.endswith("would_be_seen")
    }

    assert here - set(NAMED) == {"tests/service/security/test_sql.py::test_a_question_about_capacity_changes_nothing"}

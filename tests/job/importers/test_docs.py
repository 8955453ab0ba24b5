"""docs/reference/importers.md says of every key what the tables say; run this file to write its tables anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.job.importers.key_tables import Key, tables
from planner.job.launching.launchers import OPTIONS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "reference" / "importers.md"


def table_of(known: Mapping[str, Key]) -> str:
    """A row for the keys that matter in the same way; the command itself lists those that do not matter."""
    rows: dict[str, list[str]] = {}
    for name, key in known.items():
        if key.only and not key.to:
            values = ", ".join(f"`{_shown(value)}`" for value in key.only)
            rows.setdefault(f"refused unless {values}: {key.why}", []).append(name)
        elif key.to:
            rows.setdefault(f"`{key.to}`{f': {key.why}' if key.why else ''}", []).append(name)
        elif key.supposed:
            rows.setdefault(f"planned in its place: {key.supposed}", []).append(name)
    lines = [f"| {', '.join(f'`{name}`' for name in names)} | {becomes} |" for becomes, names in rows.items()]
    return "\n".join(["| key | becomes |", "|---|---|", *lines])


def _shown(value: object) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value).strip("'") or '""'
    )


def _pattern(name: str) -> re.Pattern[str]:
    marker = re.escape(f"<!-- keys of {name} -->")
    return re.compile(f"{marker}\n(.*?)\n<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", tables())
def test_the_page_holds_the_table(name: str) -> None:
    found = _pattern(name).search(PAGE.read_text(encoding="utf-8"))

    assert found is not None
    assert found[1] == table_of(tables()[name].keys)


def test_the_page_holds_the_options_of_launchers() -> None:
    text = (DOCS / "importers.md").read_text(encoding="utf-8")

    for name in sorted(OPTIONS["accelerate"]["read"]):
        assert f"`--{name}`" in text, name


def write() -> None:
    """Puts the tables of today into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, known in tables().items():
        block = f"<!-- keys of {name} -->\n{table_of(known.keys)}\n<!-- end -->"
        text = _pattern(name).sub(lambda _, block=block: block, text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()

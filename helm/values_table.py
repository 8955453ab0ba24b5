"""Makes the table of values in the chart's README from its values.yaml:  python helm/values_table.py

A line `# -- ...` says what the next value is; further comment lines before it go on with the sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "planner"
BEGIN, END = "<!-- values: made by helm/values_table.py -->", "<!-- end of values -->"
_KEY = re.compile(r"^(?P<blanks> *)(?P<key>[A-Za-z]\w*):")


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value: where it is, what it is, what it is by default."""

    path: tuple[str, ...]
    text: str
    default: Any


def documented(text: str) -> Iterator[Value]:
    """Every value that has a comment `# --`, in the order of the file."""
    defaults = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    said: list[str] = []
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("# -- "):
            said = [comment.removeprefix("# -- ")]
        elif comment.startswith("#") and said:
            said.append(comment.removeprefix("#").strip())
        elif found := _KEY.match(line):
            depth = len(found["blanks"])
            path = [*(each for each in path if each[0] < depth), (depth, found["key"])]
            keys = tuple(key for _, key in path)
            if said:
                yield Value(keys, " ".join(said), _at(defaults, keys))
            said = []
        else:
            said = []


def _at(values: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        values = values[key]
    return values


def table(values: Iterator[Value]) -> str:
    """The table, in Markdown."""
    rows = [f"| `{'.'.join(each.path)}` | {_shown(each.default)} | {_cell(each.text)} |" for each in values]
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *rows])


def _shown(default: Any) -> str:
    text = json.dumps(default, ensure_ascii=False)
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(readme: str, values: str) -> str:
    """The README with the table of these values in its place."""
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(documented(values))}\n{END}{after}"


if __name__ == "__main__":
    readme = CHART / "README.md"
    made = page(readme.read_text(encoding="utf-8"), (CHART / "values.yaml").read_text(encoding="utf-8"))
    readme.write_text(made, encoding="utf-8")

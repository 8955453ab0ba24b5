"""The folder of facts: planner's own, or the one that PLANNER_FACTS names.

`observations*.jsonl` has an observed step a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.errors import FactsError

VARIABLE = "PLANNER_FACTS"
OBSERVATIONS = "observations"
_OWN = Path(__file__).with_name("measured")


def facts_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the facts lie. Raises FactsError if PLANNER_FACTS names no folder."""
    named = environment.get(VARIABLE)
    if named and not Path(named).is_dir():
        raise FactsError(f"{named[:200]!r} is not a folder", allowed="a folder of measured facts", place=VARIABLE)
    return Path(named) if named else _OWN


FolderState = tuple[tuple[Path, int, int], ...]
"""Files with their sizes and times: what was read of them holds as long as these do."""


def state_of(folder: Path, kind: str) -> FolderState:
    """The files of one kind of facts, sorted by name."""
    files = sorted(folder.glob(f"{kind}*.jsonl")) if folder.is_dir() else []
    return tuple((each, each.stat().st_size, each.stat().st_mtime_ns) for each in files)


def read_lines(state: FolderState) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The object of each line with its place. Raises FactsError for a line that is none."""
    for path, *_ in state:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if not text.strip():
                continue
            place = f"{path.name}:{number}"
            try:
                found = json.loads(text)
            except ValueError as error:
                raise FactsError(f"this line is not JSON: {error}", allowed="one object a line", place=place) from None
            if not isinstance(found, dict):
                raise FactsError("this line is not an object", allowed="one object a line", place=place)
            yield place, found

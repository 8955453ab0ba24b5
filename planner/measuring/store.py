"""Measurements in a file: one JSON object a line, appended, never rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from planner.errors import MeasureError, SpecError
from planner.job.json_text import read_json
from planner.measuring.measurement import Measurement, from_json, to_json
from planner.units import MIB

MOST_BYTES = 256 * MIB
"""Of a file: some ten thousand measurements."""


def line(measurement: Measurement) -> str:
    """The measurement as one line, without the newline."""
    return json.dumps(to_json(measurement), separators=(",", ":"), sort_keys=False, allow_nan=False)


def append(path: Path, measurements: Iterable[Measurement]) -> None:
    """Each as a line at the end of the file, which is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line(each)}\n" for each in measurements)


def read(path: Path) -> list[Measurement]:
    """All measurements of a file, in its order. Raises MeasureError with the line for one that cannot be read."""
    try:
        lines = _content(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise MeasureError(f"{path} cannot be read: {reason}", allowed="a file that planner measure wrote") from None
    found = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            document = read_json(text, f"{path}:{number}")
        except SpecError as error:
            raise MeasureError(f"this line is no JSON object: {error.problem}", place=f"{path}:{number}") from None
        if not isinstance(document, dict):
            raise MeasureError("this line is no JSON object", place=f"{path}:{number}")
        try:
            found.append(from_json(document))
        except MeasureError as error:
            raise MeasureError(error.problem, allowed=error.allowed, place=f"{path}:{number}") from error
    return found


def _content(path: Path) -> bytes:
    """Raises MeasureError for more than a file of measurements has, so that one without end has one."""
    content = bytearray()
    with path.open("rb") as file:
        while len(content) <= MOST_BYTES and (chunk := file.read(MIB)):  # one read of the most would take it at once
            content += chunk
    if len(content) > MOST_BYTES:
        raise MeasureError(
            f"{path} is larger than {MOST_BYTES // MIB} MiB", allowed="a file that planner measure wrote"
        )
    return bytes(content)

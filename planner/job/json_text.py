"""Reads files as text of bounded size and JSON strictly, and writes JSON the same way everywhere."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.errors import SpecError, shorten
from planner.job.size_limits import LONGEST_NAME, LONGEST_NUMBER, MOST_DEPTH, MOST_JSON_VALUES, MOST_WHOLE

# transformers >= 5 spells numbers that JSON does not have this way in config.json
# (transformers/configuration_utils.py, _encode_special_floats); Mamba-2's time_step_limit needs it.
_SPECIAL = "__float__"
_SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf}
# A text that is never closed reaches to the end: else each quote in it would be tried as the beginning of another.
_TEXTS = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def read_json(text: str, source: str, *, constants: bool = True) -> Any:
    """The data of a JSON text; SpecError with line and column if it is not JSON, has a key twice, or is beyond the
    limits of planner.job.size_limits.

    `constants` admits NaN and Infinity, which are not JSON but what Python writes into files.
    """

    def object_of(pairs: list[tuple[str, Any]]) -> Any:
        members = dict(pairs)
        if len(members) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise SpecError(
                f"the key `{shorten(twice, LONGEST_NAME)}` stands twice in one object",
                remedy="keep one of them",
                place=source,
            )
        special = special_float(members)
        return members if special is None else special

    def refuse(name: str) -> float:
        raise SpecError(f"no JSON: {name}", allowed="numbers that are finite", place=source)

    def whole(written: str) -> int:
        return whole_number(written, source)

    def fraction(written: str) -> float:
        number = fractional_number(written, source)
        return number if constants or math.isfinite(number) else refuse(written[:40])

    # Before anything is built: each value stands behind a comma or an opening bracket, or is the whole text.
    if _most_values(text) > MOST_JSON_VALUES and _most_values(_TEXTS.sub("", text)) > MOST_JSON_VALUES:
        raise SpecError(f"the JSON has more than {MOST_JSON_VALUES} values", allowed="fewer", place=source)
    try:
        hook = None if constants else refuse
        data = json.loads(text, object_pairs_hook=object_of, parse_constant=hook, parse_int=whole, parse_float=fraction)
        _check_depth(data)
        return data
    except json.JSONDecodeError as error:
        place = f"{source}:{error.lineno}:{error.colno}"
        problem = error.msg.removesuffix(" at")  # in Python's own message the position follows
        raise SpecError(f"no JSON: {problem}", allowed="one JSON object", place=place) from None
    except RecursionError:
        raise SpecError("no usable JSON: nested too deeply", place=source) from None


def packaged_json(name: str) -> Any:
    """The content of a JSON file that lies in this package."""
    return json.loads(files("planner.job").joinpath(name).read_text(encoding="utf-8"))


def whole_number(written: str, place: str, name: str = "") -> int:
    """The number that a text writes, also in another base (`0x10`). Raises SpecError for one beyond MOST_WHOLE, and
    ValueError for a text that writes none."""
    if len(written) <= LONGEST_NUMBER:
        number = int(written, 0)
        if abs(number) <= MOST_WHOLE:
            return number
    raise number_too_long(written, place, name)


def fractional_number(written: str, place: str, name: str = "") -> float:
    """The number that a text writes. Raises SpecError for one of too many digits, and ValueError for none."""
    if len(written) > LONGEST_NUMBER:
        raise number_too_long(written, place, name)
    return float(written)


def number_too_long(written: str, place: str, name: str = "") -> SpecError:
    """The fault of a number that nothing in a job can be; `name` is the value's dotted key."""
    return SpecError(
        f"{name or 'a number'} is {written[:20]}{'...' if len(written) > 20 else ''}, of {len(written)} characters",
        allowed=f"whole numbers up to 2**{MOST_WHOLE.bit_length() - 1}, others of up to {LONGEST_NUMBER} characters",
        place=place,
    )


def _most_values(text: str) -> int:
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _check_depth(data: Any, depth: int = 0) -> None:
    """Raises RecursionError below MOST_DEPTH."""
    if depth > MOST_DEPTH:
        raise RecursionError
    inner = data.values() if isinstance(data, dict) else data
    for value in inner if isinstance(data, dict | list) else ():
        if isinstance(value, dict | list):
            _check_depth(value, depth + 1)


def special_float(data: Mapping[str, Any]) -> float | None:
    """The number that JSON does not have and that an object stands for; None for any other object."""
    special = data.get(_SPECIAL)
    return _SPECIAL_FLOATS.get(special) if len(data) == 1 and isinstance(special, str) else None


def without_floats(data: Any) -> Any:
    """Plain data in which infinite floats are spelled as transformers does, so that it is JSON."""
    if data is None or isinstance(data, str | int):
        return data
    if isinstance(data, Mapping):
        return {key: without_floats(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [without_floats(value) for value in data]
    if isinstance(data, float) and math.isinf(data):
        return {_SPECIAL: "Infinity" if data > 0 else "-Infinity"}
    return data


def canonical_json(data: Any) -> str:
    """The one text of plain data for hashing: sorted keys, no spaces, ASCII."""
    return json.dumps(without_floats(data), sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_plain_text(value: str) -> bool:
    """Whether it can be written as UTF-8: it has no half of a pair of code units."""
    return value.isascii() or not any("\ud800" <= unit <= "\udfff" for unit in value)


_MOST_BYTES = 16 * 2**20


def file_text(path: Path, written: str, place: str = "") -> str:
    """The UTF-8 text of a file that the person called `written` at `place`; SpecError if there is none to read."""
    try:
        if path.is_dir():
            raise SpecError(f"{written} is a folder", allowed="a file", place=place)
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        remedy = "a relative path starts from the folder of the spec" if place else ""
        raise SpecError(f"there is no file {written}", remedy=remedy, place=place) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"{written} cannot be read: {reason}", place=place) from None
    if len(content) > _MOST_BYTES:
        raise SpecError(f"{written} is larger than 16 MiB", place=place)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{written} is not UTF-8 text (byte {error.start})", place=place) from None

"""JSON text, read strictly and written the same way everywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from planner.errors import SpecError

# transformers >= 5 spells numbers that JSON does not have this way in config.json
# (transformers/configuration_utils.py, _encode_special_floats); Mamba-2's time_step_limit needs it.
_SPECIAL = "__float__"
_SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf}
MOST_DEPTH = 100
"""No job needs more levels, and every reader and writer of one must be able to follow."""


def read_json(text: str, source: str, *, constants: bool = True) -> Any:
    """The data of a JSON text; SpecError with line and column if it is no JSON or has a key twice.

    `constants` admits NaN and Infinity, which are no JSON but what Python writes into files.
    """

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise SpecError(f"the key `{twice}` stands twice in one object", remedy="keep one of them", place=source)
        return found

    def refuse(name: str) -> float:
        raise SpecError(f"no JSON: {name}", allowed="numbers that are finite", place=source)

    try:
        hook = None if constants else refuse
        return with_floats(json.loads(text, object_pairs_hook=without_duplicates, parse_constant=hook))
    except json.JSONDecodeError as error:
        place = f"{source}:{error.lineno}:{error.colno}"
        problem = error.msg.removesuffix(" at")  # in Python's own message the position follows
        raise SpecError(f"no JSON: {problem}", allowed="one JSON object", place=place) from None
    except RecursionError:
        raise SpecError("no usable JSON: nested too deeply", place=source) from None
    except ValueError as error:  # an integer of more digits than Python reads
        raise SpecError(f"no usable JSON: {error}", place=source) from None


def special_float(data: Mapping[str, Any]) -> float | None:
    """The number that JSON does not have and that an object stands for; None for any other object."""
    special = data.get(_SPECIAL)
    return _SPECIAL_FLOATS.get(special) if len(data) == 1 and isinstance(special, str) else None


def with_floats(data: Any, depth: int = 0) -> Any:
    """Plain data in which numbers that JSON does not have are floats again. Raises RecursionError below MOST_DEPTH."""
    if depth > MOST_DEPTH:
        raise RecursionError
    if isinstance(data, Mapping):
        special = special_float(data)
        return {key: with_floats(value, depth + 1) for key, value in data.items()} if special is None else special
    if isinstance(data, list):
        return [with_floats(value, depth + 1) for value in data]
    return data


def without_floats(data: Any) -> Any:
    """Plain data in which infinite floats are spelled as transformers does, so that it is JSON."""
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

"""A calibration as the JSON object `planner.calibration/1`, and its name."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from planner.calibration.interval import Calibration
from planner.calibration.observation import Observation
from planner.errors import PlannerError
from planner.job.json_text import canonical_json

SCHEMA = "planner.calibration/1"
OBSERVATION_SCHEMA = "planner.observation/1"
_DIGITS = 12
_Value = TypeVar("_Value")


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain values; all sizes are bytes, residuals are relative to what was predicted."""
    plain = dataclasses.asdict(calibration)
    return {"schema": SCHEMA, **plain, "corrections": [*plain["corrections"]], "quarantined": [*plain["quarantined"]]}


def from_json(document: Mapping[str, Any]) -> Calibration:
    """The calibration that :func:`to_json` wrote.

    Raises PlannerError for another schema, a key too many or too few, a value of a wrong type, and for figures that
    are not those of the name.
    """
    schema = document.get("schema")
    if schema != SCHEMA:
        raise PlannerError(f"a document of schema {schema!r} is no calibration", allowed=SCHEMA, place="schema")
    found = _read(Calibration, {key: value for key, value in document.items() if key != "schema"}, "calibration")
    if found.corrections and found.id != digest(found):
        raise PlannerError(
            f"the figures are not those of calibration {found.id}", remedy="learn it again", place="calibration.id"
        )
    return found


def observation_to_json(seen: Observation) -> dict[str, Any]:
    """An observation as one line of a file of facts, schema planner.observation/1."""
    return {"schema": OBSERVATION_SCHEMA, **dataclasses.asdict(seen)}


def observation_from_json(document: Mapping[str, Any], place: str) -> Observation:
    """The observation that :func:`observation_to_json` wrote. Raises PlannerError for anything else."""
    if document.get("schema") != OBSERVATION_SCHEMA:
        said = str(document.get("schema"))[:60]
        raise PlannerError(f"schema {said!r} is no observation", allowed=OBSERVATION_SCHEMA, place=place)
    return _read(Observation, {key: value for key, value in document.items() if key != "schema"}, place)


def digest(calibration: Calibration) -> str:
    """The name of a calibration: twelve hexadecimal digits of the hash of all that it holds."""
    held = {key: value for key, value in dataclasses.asdict(calibration).items() if key != "id"}
    return hashlib.sha256(canonical_json(held).encode()).hexdigest()[:_DIGITS]


def _read(kind: type[_Value], value: Any, place: str) -> _Value:
    """A value of exactly this type: a dataclass from an object, a tuple from a list, a finite number, a text."""
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(value, "a list", place)
        member = typing.get_args(kind)[0]
        return typing.cast(_Value, tuple(_read(member, each, f"{place}[{n}]") for n, each in enumerate(value)))
    if isinstance(kind, types.UnionType):
        member = next(each for each in typing.get_args(kind) if each is not types.NoneType)
        return typing.cast(_Value, None if value is None else _read(member, value, place))
    if dataclasses.is_dataclass(kind):
        return typing.cast(_Value, _read_object(kind, value, place))
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return typing.cast(_Value, float(value))
    if kind is float or type(value) is not kind:
        raise _wrong(value, "a finite number" if kind is float else kind.__name__, place)
    return value


def _read_object(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object", place)
    wanted = typing.get_type_hints(kind)
    if set(value) != set(wanted):
        raise PlannerError(
            f"keys missing: {sorted(set(wanted) - set(value))}, unknown: {sorted(map(str, set(value) - set(wanted)))}",
            allowed=", ".join(wanted),
            place=place,
        )
    return kind(**{name: _read(wanted[name], value[name], f"{place}.{name}") for name in wanted})


def _wrong(value: Any, allowed: str, place: str) -> PlannerError:
    return PlannerError(f"{value!r} is of a wrong type", allowed=allowed, place=place)

"""The JSON Schema of job specs, for editors that check while one types; what several keys must be to each other is not
in it."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from planner.job import schema, short_forms
from planner.job.spec_keys import NAMED, SpecKey, all_keys, may_be_none, short_key, takes_a_mapping

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TEXTS = {"type": ["string", "number"]}
"""A text that looks like a number may stand without quotes (`torch: 2.10`)."""
_FILE_OR_CONTENT = {"type": ["string", "object", "null"]}


def json_schema() -> dict[str, Any]:
    """The schema of a spec, and of what `planner spec` prints."""
    return {"$schema": _DRAFT, "title": "planner job spec", **_object("", open_ended=False)}


def _object(path: str, *, open_ended: bool) -> dict[str, Any]:
    keys = [key for key in all_keys() if key.parent == path and not key.path.endswith(f".{NAMED}")]
    found: dict[str, Any] = {
        "type": "object",
        "properties": {key.name: _described(key) for key in keys},
        "additionalProperties": open_ended,
    }
    if required := [key.name for key in keys if key.required]:
        found["required"] = required
    return found


def _described(key: SpecKey) -> dict[str, Any]:
    found = _section(key) if key.section is not None else _value(key)
    if key.path == "train.sequence_length":
        found = {"anyOf": [*found["anyOf"], {"type": "object"}]}
    if key.meaning:
        found = {"description": key.meaning, **found}
    if key.section is None and not key.required and key.default is not None:
        found["default"] = list(key.default) if isinstance(key.default, tuple) else key.default
    return found


def _section(key: SpecKey) -> dict[str, Any]:
    if typing.get_origin(key.hint) is Mapping:
        return {"type": "object", "additionalProperties": _object(f"{key.path}.{NAMED}", open_ended=False)}
    written = [_object(key.path, open_ended=key.section is schema.Optimizer)]
    if short := short_key(key):
        written.append(_value(next(each for each in all_keys() if each.path == f"{key.path}.{short}")))
        written[0].pop("required", None)
    elif key.section is not None and short_forms.has_short_forms(key.section):
        written.append({"type": ["boolean", "string", "array"]})
    if may_be_none(key) or key.section is schema.Gpu:
        written.append({"type": "null"})
    return written[0] if len(written) == 1 else {"anyOf": written}


def _value(key: SpecKey) -> dict[str, Any]:
    check = key.check
    assert check is not None
    if typing.get_origin(key.hint) is tuple:
        item = _scalar(typing.get_args(key.hint)[0], key)
        several = {"type": "array", "items": item}
        return {"anyOf": [item, several]} if key.path in short_forms.ONE_OR_SEVERAL else several
    if typing.get_origin(key.hint) is Mapping:
        return {"type": "object"}
    if may_be_none(key) and takes_a_mapping(key):
        return dict(_FILE_OR_CONTENT)
    return _scalar(key.hint, key)


def _scalar(hint: Any, key: SpecKey) -> dict[str, Any]:
    check = key.check
    assert check is not None
    if check.names:
        return {"enum": list(check.names)}
    if check.size:
        return {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}
    if typing.get_args(hint):
        return {"anyOf": [_scalar(each, key) for each in typing.get_args(hint)]}
    if hint is types.NoneType:
        return {"type": "null"}
    if hint is str:
        return dict(_TEXTS)
    if hint is bool or hint is float:
        return {"type": "boolean" if hint is bool else "number"}
    number: dict[str, Any] = {"type": "integer"}
    if check.least is not None:
        number["minimum"] = check.least
    return {"anyOf": [number, {"type": "string", "pattern": "^[1-9][0-9]*[kK]$"}]} if check.tokens else number

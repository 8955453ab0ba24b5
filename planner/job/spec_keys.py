"""Every key that a job spec may have, from the schema and its checks, and their JSON Schema for editors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.job import schema, short_forms
from planner.job.field_checks import CHECKS, Check

NAMED = "NAME"
"""Stands in paths for a name that people choose (`train.inputs.NAME.shape`)."""
_OPEN = {(schema.Optimizer, "arguments")}
"""Fields that take the keys of their section which are no fields."""
_ASKED_FOR = {(schema.Job, "cluster"), (schema.Cluster, "gpu")}
"""Fields that have a default in the schema and must be said all the same (planner/job/loading.py)."""


@dataclass(frozen=True, slots=True)
class SpecKey:
    """One key; a section is a mapping of further keys."""

    path: str
    """Dotted, as in messages: `train.optimizer.name`."""
    kind: type
    """The dataclass that has it as a field."""
    name: str
    hint: Any
    check: Check | None
    """Of its value, or of each item of a list; None for a section."""
    section: type | None
    """The dataclass of a section."""
    required: bool
    default: Any
    """Of the schema; of no meaning for a required key."""
    meaning: str
    """The docstring of the field, or the first sentence of the section's."""

    @property
    def parent(self) -> str:
        """The section that has it; empty at the top."""
        return self.path.rpartition(".")[0]


@cache
def all_keys() -> tuple[SpecKey, ...]:
    """Every key, a section before what it holds, in the order of the schema."""
    return tuple(_keys(schema.Job, ""))


@cache
def by_path() -> Mapping[str, SpecKey]:
    """Every key by its path."""
    return {key.path: key for key in all_keys()}


def places_of(name: str) -> list[str]:
    """The paths of all keys that are called so, in any case."""
    return [key.path for key in all_keys() if key.name.casefold() == name.casefold() and NAMED not in key.path]


def _keys(kind: type, path: str) -> Iterator[SpecKey]:
    hints, docs = typing.get_type_hints(kind), _docstrings(kind)
    for field in dataclasses.fields(kind):
        at = f"{path}.{field.name}" if path else field.name
        hint = hints[field.name]
        section = _section_in(hint)
        if (kind, field.name) in _OPEN:
            at = f"{path}.{NAMED}"
        required = (kind, field.name) in _ASKED_FOR or (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        meaning = docs.get(field.name) or (_first_sentence(section) if section else "")
        check = CHECKS.get((kind, field.name))
        yield SpecKey(at, kind, field.name, hint, check, section, required, made, meaning)
        if section is not None:
            below = f"{at}.{NAMED}" if typing.get_origin(hint) is Mapping else at
            yield from _keys(section, below)


def _section_in(hint: Any) -> type | None:
    """The dataclass of `X`, `X | None` or `Mapping[str, X]`."""
    for kind in (hint, *typing.get_args(hint)):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    return None


def may_be_none(key: SpecKey) -> bool:
    """Whether null may be written for it."""
    return isinstance(key.hint, types.UnionType) and types.NoneType in typing.get_args(key.hint)


def takes_a_mapping(key: SpecKey) -> bool:
    """Whether its value may have keys of its own."""
    hints = (key.hint, *typing.get_args(key.hint))
    return any(typing.get_origin(each) is Mapping for each in hints)


def short_key(key: SpecKey) -> str:
    """The key below a section that a lone value stands for; empty if there is none."""
    return short_forms.single_key(key.section) if key.section is not None else ""


def _first_sentence(kind: type) -> str:
    text = " ".join((kind.__doc__ or "").split())
    if text.startswith(f"{kind.__name__}("):
        return ""  # what dataclass itself writes
    return text.partition(". ")[0].rstrip(".") + "." if text else ""


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """The text that follows each field in the source, as one line."""
    found: dict[str, str] = {}
    body = _classes(kind.__module__)[kind.__name__].body
    for field, after in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value)
            found[field.target.id] = " ".join(text.split())
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


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
    found = _section(key) if key.section is not None else _value_schema(key)
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
        written.append(_value_schema(next(each for each in all_keys() if each.path == f"{key.path}.{short}")))
        written[0].pop("required", None)
    elif key.section is not None and short_forms.has_short_forms(key.section):
        written.append({"type": ["boolean", "string", "array"]})
    if may_be_none(key) or key.section is schema.Gpu:
        written.append({"type": "null"})
    return written[0] if len(written) == 1 else {"anyOf": written}


def _value_schema(key: SpecKey) -> dict[str, Any]:
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

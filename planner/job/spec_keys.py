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
from planner.job.field_checks import Check

NAMED = "NAME"
"""Stands in paths for a name that people choose (`train.inputs.NAME.shape`)."""
OPEN: Mapping[type, str] = {
    schema.Adapter: "arguments of LoraConfig",
    schema.Optimizer: "arguments of the optimizer",
    schema.Compile: "arguments of torch.compile",
    schema.DpReplicate: "arguments of DistributedDataParallel",
}
"""Sections whose field `arguments` takes the keys that are no fields, and what those are."""
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
    def short(self) -> str:
        """The key below a section that a lone value stands for; empty if there is none."""
        return "" if self.section is None else short_forms.find_form(self.section).key

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
        name, hint = field.name, hints[field.name]
        section = section_in(hint)
        at = f"{path}.{NAMED if kind in OPEN and name == 'arguments' else name}".removeprefix(".")
        has_factory = field.default_factory is not dataclasses.MISSING
        required = (kind, name) in _ASKED_FOR or (field.default is dataclasses.MISSING and not has_factory)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        meaning = docs.get(name, "")
        if not meaning and section is not None:
            text = " ".join((section.__doc__ or "").split())
            is_own = text and not text.startswith(f"{section.__name__}(")  # what dataclass itself writes
            meaning = text.partition(". ")[0].rstrip(".") + "." if is_own else ""
        yield SpecKey(at, kind, name, hint, schema.CHECKS.get((kind, name)), section, required, default, meaning)
        if section is not None:
            yield from _keys(section, f"{at}.{NAMED}" if typing.get_origin(hint) is Mapping else at)


def is_argument(section: Any, key: str) -> bool:
    """Whether a key of a section of a job is one of the `arguments` that it passes on."""
    return type(section) in OPEN and key not in {field.name for field in dataclasses.fields(section)}


def section_in(hint: Any) -> type | None:
    """The dataclass of `X`, `X | None` or `Mapping[str, X]`."""
    kinds = (hint, *typing.get_args(hint))
    return next((kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


def is_optional(hint: Any) -> bool:
    """Whether null may be written for a value of this type."""
    return isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)


def takes_a_mapping(key: SpecKey) -> bool:
    """Whether its value may have keys of its own."""
    return any(typing.get_origin(hint) is Mapping for hint in (key.hint, *typing.get_args(key.hint)))


def _docstrings(kind: type) -> dict[str, str]:
    """The text that follows each field in the source, as one line."""
    return {
        field.target.id: " ".join(ast.literal_eval(after.value).split())
        for field, after in itertools.pairwise(_classes(kind.__module__)[kind.__name__].body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr)
    }


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


_PLAIN: Mapping[Any, dict[str, Any]] = {
    types.NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    str: {"type": ["string", "number"]},  # what looks like a number may stand without quotes (`torch: 2.10`)
}


def json_schema() -> dict[str, Any]:
    """The schema of a spec, and of what `planner spec` prints."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "planner job spec", **_object("", open_ended=False)}


def _object(path: str, *, open_ended: bool) -> dict[str, Any]:
    keys = [key for key in all_keys() if key.parent == path and not key.path.endswith(f".{NAMED}")]
    required = [key.name for key in keys if key.required]
    return {
        "type": "object",
        "properties": {key.name: _described(key) for key in keys},
        "additionalProperties": open_ended,
        **({"required": required} if required else {}),
    }


def _described(key: SpecKey) -> dict[str, Any]:
    described = _value_schema(key) if key.section is None else _section(key, key.section)
    if key.path == "train.sequence_length":
        described = {"anyOf": [*described["anyOf"], {"type": "object"}]}
    if key.meaning:
        described = {"description": key.meaning, **described}
    if key.section is None and not key.required and key.default is not None:
        described["default"] = list(key.default) if isinstance(key.default, tuple) else key.default
    return described


def _section(key: SpecKey, section: type) -> dict[str, Any]:
    if typing.get_origin(key.hint) is Mapping:
        return {"type": "object", "additionalProperties": _object(f"{key.path}.{NAMED}", open_ended=False)}
    forms = [_object(key.path, open_ended=section in OPEN)]
    if short := key.short:
        forms.append(_value_schema(by_path()[f"{key.path}.{short}"]))
        forms[0].pop("required", None)
    elif section is schema.Compile:
        forms.append({"type": ["boolean", "string", "array"]})
    if is_optional(key.hint) or section is schema.Gpu:
        forms.append({"type": "null"})
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _value_schema(key: SpecKey) -> dict[str, Any]:
    assert key.check is not None
    if typing.get_origin(key.hint) is tuple:
        item = _scalar(typing.get_args(key.hint)[0], key.check)
        several = {"type": "array", "items": item}
        return {"anyOf": [item, several]} if key.path in short_forms.ONE_OR_SEVERAL else several
    if typing.get_origin(key.hint) is Mapping:
        return {"type": "object"}
    if is_optional(key.hint) and takes_a_mapping(key):
        return {"type": ["string", "object", "null"]}  # a file, or its content
    return _scalar(key.hint, key.check)


def _scalar(hint: Any, check: Check) -> dict[str, Any]:
    if check.names:
        return {"enum": list(check.names)}
    if check.size:
        return {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}
    if typing.get_args(hint):
        return {"anyOf": [_scalar(kind, check) for kind in typing.get_args(hint)]}
    if hint is not int:
        return dict(_PLAIN[hint])
    whole = {"type": "integer", **({} if check.least is None else {"minimum": check.least})}
    return {"anyOf": [whole, {"type": "string", "pattern": "^[1-9][0-9]*[kK]$"}]} if check.tokens else whole

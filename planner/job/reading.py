"""From nodes to the dataclasses of a job, driven by their type hints and the table of checks."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError, shorten
from planner.job import deepspeed_config, foreign_values, foreign_words, hf_config, short_forms
from planner.job.field_checks import CHECKS, Check
from planner.job.nearest import did_you_mean
from planner.job.nodes import Node, below
from planner.job.post_training_schema import FrozenModel
from planner.job.schema import Model, Parallel
from planner.job.size_limits import LONGEST_NAME
from planner.units import parse_bytes

_THOUSANDS = re.compile(r"([1-9][0-9]{0,8})[kK]")
"""`4k` tokens are 4096 wherever people write so of sequences."""


def read_dataclass(kind: type, node: Node, folder: Path | None) -> Any:
    """The dataclass that a mapping, or one of its short forms, describes; SpecError at the first fault.

    `folder` is where relative paths start; None for a spec that may refer to nothing outside.
    """
    written = short_forms.written_out(kind, node).mapping(short_forms.describe_allowed(kind))
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key, child in written.items():
        if key not in fields:
            raise _unknown_key(key, child, node, list(fields))
    hints = typing.get_type_hints(kind)
    values = {}
    for name, field in fields.items():
        if name in written:
            values[name] = _read_field(kind, name, hints[name], written[name], folder)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SpecError(
                f"{below(node.path, name)} is missing",
                allowed=_describe_allowed(kind, name, hints[name]),
                place=node.place,
            )
    return kind(**values)


def _read_field(kind: type, name: str, hint: Any, node: Node, folder: Path | None) -> Any:
    if (kind, name) in ((Model, "hf_config"), (FrozenModel, "config")):
        return hf_config.read(node, folder)
    if (kind, name) == (Parallel, "deepspeed"):
        return deepspeed_config.read(node, folder)
    if (nested := _dataclass_in(hint)) is not None:
        if (node.value is None or node.value is False) and _may_be_none(hint):
            return None
        return read_dataclass(nested, node, folder)
    if typing.get_origin(hint) is Mapping:
        return _read_mapping(hint, node, folder)
    check = CHECKS[kind, name]
    if typing.get_origin(hint) is tuple:
        if not isinstance(node.value, list):
            raise node.is_error(allowed=_describe_allowed_items(check))
        return tuple(_read_value(kind, name, typing.get_args(hint)[0], item, check) for item in node.value)
    return _read_value(kind, name, hint, node, check)


def _read_mapping(hint: Any, node: Node, folder: Path | None) -> dict[str, Any]:
    nested = typing.get_args(hint)[1]
    if not dataclasses.is_dataclass(nested):
        return {key: child.plain() for key, child in node.mapping().items()}
    # In the order of the names, so that a job is the same whichever way its document was sorted.
    children = sorted(node.mapping("a mapping of names to inputs").items())
    return {key: read_dataclass(typing.cast(type, nested), child, folder) for key, child in children}


def _read_value(kind: type, name: str, hint: Any, node: Node, check: Check) -> Any:
    value: Any
    if check.size:
        value = _read_size(node, check)
    elif check.tokens and (tokens := _THOUSANDS.fullmatch(str(node.value))) is not None:
        value = 1024 * int(tokens[1])
    elif hint is str and node.written:
        value = node.written  # `torch: 2.10` means the text, not the number 2.1
    else:
        value = node.value
    if not _has_type(value, hint) or not check.accepts(value):
        known = foreign_values.remedy(kind, name, value)
        raise node.is_error(allowed=check.allowed, remedy=known or _remedy(value, hint, check))
    return float(value) if hint is float else value


def _read_size(node: Node, check: Check) -> int:
    negative = str(node.value).lstrip().startswith("-")
    remedy = "" if negative else "the units are B, KB, MB, GB, TB, KiB, MiB, GiB and TiB"
    try:
        size = parse_bytes(node.value)  # type: ignore[arg-type]  # it refuses what is neither text nor whole number
    except ValueError:
        raise node.is_error(allowed=check.allowed, remedy=remedy) from None
    if not check.accepts(size):
        raise node.is_error(allowed=check.allowed, remedy=remedy if node.written else "")
    return size


def _has_type(value: Any, hint: Any) -> bool:
    """Exactly one of the hinted types: true is no whole number here, but a whole number is a number."""
    kinds = (int, float) if hint is float else typing.get_args(hint) or (hint,)
    return type(value) in kinds


def _remedy(value: Any, hint: Any, check: Check) -> str:
    if isinstance(value, str):
        if check.names:
            return did_you_mean(value, check.names)
        if hint is bool and value.lower() in ("yes", "on", "y"):
            return "write true"
        if hint is bool and value.lower() in ("no", "off", "n"):
            return "write false"
    if hint is int and type(value) is float and value.is_integer():
        return f"write {int(value)}"
    if hint is int and isinstance(value, str) and value.isdecimal() and len(value) <= LONGEST_NAME:
        return f"write {int(value)}"
    return ""


def _unknown_key(key: str, child: Node, node: Node, known: list[str]) -> SpecError:
    where = node.path or "a job spec"
    return SpecError(
        f"unknown key `{shorten(key, LONGEST_NAME)}` in {where}",
        allowed=", ".join(known),
        remedy=foreign_words.remedy(key, child, known) or did_you_mean(key, known),
        place=child.key_place or child.place,
    )


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass of `X` or `X | None`."""
    for kind in (hint, *typing.get_args(hint)):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and typing.get_origin(hint) is not Mapping:
            return kind
    return None


def _may_be_none(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)


def _describe_allowed(kind: type, name: str, hint: Any) -> str:
    if (nested := _dataclass_in(hint)) is not None:
        return short_forms.describe_allowed(nested)
    return (
        _describe_allowed_items(CHECKS[kind, name]) if typing.get_origin(hint) is tuple else CHECKS[kind, name].allowed
    )


def _describe_allowed_items(check: Check) -> str:
    return f"a list, each {check.allowed}"

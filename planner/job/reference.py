"""The reference of the job spec, as tables for people: every key with what may be written, its default and meaning."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping

from planner.hardware import catalog
from planner.job import known_models, short_forms
from planner.job.spec_keys import SpecKey, all_keys, may_be_none


def tables() -> str:
    """A table for each section, in Markdown."""
    keys = [key for key in all_keys() if not (key.section and key.parent == "")]
    sections: dict[str, list[SpecKey]] = {}
    for key in keys:
        sections.setdefault(key.parent, []).append(key)
    meanings = {key.path: key.meaning for key in all_keys()}
    parts = [_table(path, found, meanings.get(path, "")) for path, found in sections.items()]
    return "\n\n".join(parts)


def model_names() -> str:
    """The well-known models, in Markdown."""
    rows = [
        f"| `{each.name}` | {', '.join(f'`{name}`' for name in each.also)} | {each.source} |"
        for each in known_models.models().values()
    ]
    return "\n".join(["| model | also for | sizes from, if not its own config.json |", "|---|---|---|", *rows])


def gpu_names() -> str:
    """The GPUs of the catalog, in Markdown."""
    rows = [
        f"| `{gpu.name}` | {', '.join(f'`{name}`' for name in dict.fromkeys((*gpu.aliases, gpu.product)) if name)} |"
        for gpu in catalog.gpus().values()
    ]
    return "\n".join(["| GPU | also called |", "|---|---|", *rows])


def _table(path: str, keys: list[SpecKey], meaning: str) -> str:
    rows = [
        f"| `{key.name if not key.path.endswith('.NAME') else 'any other key'}` | {_escaped(_value(key))} "
        f"| {_escaped(_default(key))} | {_escaped(key.meaning)} |"
        for key in keys
    ]
    head = f"### {path}\n\n{meaning}\n" if meaning else f"### {path}\n"
    return "\n".join([head, "| key | value | default | meaning |", "|---|---|---|---|", *rows])


def _value(key: SpecKey) -> str:
    if key.section is not None:
        allowed = short_forms.describe_allowed(key.section)
        mapping = typing.get_origin(key.hint) is Mapping
        return "a mapping of names to mappings" if mapping else f"{allowed}; below"
    assert key.check is not None
    allowed = key.check.allowed
    if key.check.unit and not key.check.size:
        allowed = f"{allowed} ({key.check.unit})"
    if typing.get_origin(key.hint) is tuple:
        return f"a list, each {allowed}"
    return f"{allowed}; or null" if may_be_none(key) and "null" not in allowed else allowed


def _default(key: SpecKey) -> str:
    if key.required:
        return "required"
    if key.section is not None or key.path.endswith(".NAME"):
        return "none" if key.default is None else ""
    if key.default is None or key.default in ("", (), {}):
        return "none"
    return f"`{json.dumps(key.default) if not isinstance(key.default, str) else key.default}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")

"""Values that are put into a spec from outside of it: `--set key=value`, and options that stand for keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import SpecError
from planner.job import deepspeed_config, hf_config, short_forms, spec_keys
from planner.job.nodes import Node, below, node_from_data, placed
from planner.job.size_limits import MOST_DEPTH
from planner.job.yaml_text import read_yaml

_INLINED = {"model.hf_config": hf_config.read, "parallel.deepspeed": deepspeed_config.read}
"""Keys that may name a file, with what reads it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key; the node knows which option said it."""

    path: str
    node: Node


def parse(written: str) -> Setting:
    """The key and value of `key=value`, the value typed as in YAML. Raises SpecError."""
    place = f"--set {written[:80]}"
    path, equals, text = written.partition("=")
    path = path.strip()
    if not equals or not path or "" in path.split("."):
        raise SpecError(
            f"{written[:200]!a} is no key=value",
            allowed="a dotted key of the spec and its value, such as train.micro_batch_size=4",
            remedy="write --set KEY=VALUE, in quotes where the value has spaces",
            place="--set",
        )
    return Setting(path, placed(_value(text, place), path, place))


def setting(path: str, value: object, place: str) -> Setting:
    """A value that an option stands for."""
    return Setting(path, node_from_data(value, place, path))


def with_settings(document: Node, settings: list[Setting], folder: Path | None) -> Node:
    """The document with these values in the place of its own, one after the other; what it refers to starts at
    `folder`. Raises SpecError for a key below a value that has none."""
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    for each in settings:
        if each.path.count(".") > MOST_DEPTH:
            raise SpecError(
                f"{each.path[:80]!a}... has {each.path.count('.') + 1} parts",
                allowed=f"a key of the spec, at most {MOST_DEPTH} deep",
                place=each.node.place,
            )
        path = "cluster.gpu" if each.path == "cluster.gpu.name" else each.path  # its figures change with the name
        document = _with(document, path.split("."), each.node, folder)
    return document


def _value(text: str, place: str) -> Node:
    if not text.strip():
        raise SpecError("there is no value", allowed='a value as in YAML; "" for an empty text', place=place)
    try:
        return read_yaml(text, place)
    except SpecError as error:
        error.place = place
        raise SpecError(error.problem, allowed=error.allowed, remedy=error.remedy, place=place) from None


def _with(node: Node, keys: list[str], value: Node, folder: Path | None) -> Node:
    if not keys:
        return value
    known = spec_keys.by_path().get(node.path)
    if known is not None and known.section is None and not spec_keys.takes_a_mapping(known):
        raise _without_keys(node.path, value)
    children = _children(node, value, folder)
    path = below(node.path, keys[0])
    child = children.get(keys[0], Node({}, path, value.place, value.place))
    return replace(node, value={**children, keys[0]: _with(child, keys[1:], value, folder)})


def _children(node: Node, value: Node, folder: Path | None) -> dict[str, Node]:
    """What stands below a value, its short form written out."""
    if node.value is None:
        return {}
    if isinstance(node.value, str) and node.path in _INLINED:
        return node_from_data(_INLINED[node.path](node, folder), node.place, node.path).mapping()
    known = spec_keys.by_path().get(node.path)
    if known is not None and (short := spec_keys.short_key(known)) and not isinstance(node.value, dict | list):
        return {short: replace(node, path=below(node.path, short))}
    if isinstance(node.value, dict):
        return node.value
    if known is not None and known.section is not None:
        written = short_forms.written_out(known.section, node).value
        if isinstance(written, dict):
            return written
    raise _without_keys(node.path, value)


def _without_keys(path: str, value: Node) -> SpecError:
    return SpecError(
        f"{path} is a value, and has no keys below it",
        allowed=f"--set {path}=VALUE",
        remedy="set the whole value",
        place=value.place,
    )

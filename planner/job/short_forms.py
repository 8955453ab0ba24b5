"""Short ways to write a part of a job spec, as rewritings to the long one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import SpecError
from planner.job import named_gpus, schema
from planner.job.nodes import Node, below, placed
from planner.job.schema import tokens_of
from planner.job.yaml_text import read_yaml


def written_out(kind: type, node: Node) -> Node:
    """The node in the long form of the dataclass `kind`; itself if it is not in a short form."""
    rewrite = _REWRITINGS.get(kind)
    return rewrite(node) if rewrite else node


def describe_allowed(kind: type) -> str:
    """What may be written for the dataclass `kind`."""
    return _ALLOWED.get(kind, "a mapping")


def has_short_forms(kind: type) -> bool:
    """Whether something else than a mapping may be written for the dataclass `kind`."""
    return kind in _REWRITINGS and kind is not schema.Train


def single_key(kind: type) -> str:
    """The key that a lone value stands for; empty for a dataclass that is always a mapping."""
    return _SINGLE_KEYS.get(kind, "")


def _single(key: str) -> Callable[[Node], Node]:
    """A lone value stands for the mapping with this one key."""

    def rewrite(node: Node) -> Node:
        if node.value is None or isinstance(node.value, dict | list):
            return node
        return _mapping(node, {key: node})

    return rewrite


def _mapping(node: Node, children: dict[str, Node]) -> Node:
    return replace(node, value=children)


def _optimizer(node: Node) -> Node:
    """All keys but `name` are the optimizer's own arguments."""
    node = _single("name")(node)
    if not isinstance(node.value, dict):
        return node
    arguments = {key: child for key, child in node.value.items() if key != "name"}
    named = {"name": node.value["name"]} if "name" in node.value else {}
    return _mapping(node, {**named, "arguments": _mapping(node, arguments)})


def _recompute(node: Node) -> Node:
    """`{every: 2}` needs no mode."""
    node = _single("mode")(node)
    if isinstance(node.value, dict) and "every" in node.value and "mode" not in node.value:
        every = node.value["every"]
        mode = replace(every, value="every", path=below(node.path, "mode"), written="")
        return _mapping(node, {"mode": mode, **node.value})
    return node


def _compile(node: Node) -> Node:
    """`true` asks for every default; names of scopes stand for the mapping with them; a lone name for a list."""
    if node.value is True:
        return _mapping(node, {})
    node = _mapping(node, {"scope": node}) if isinstance(node.value, list) else _single("scope")(node)
    if isinstance(node.value, dict) and "scope" in node.value and isinstance(node.value["scope"].value, str):
        scope = node.value["scope"]
        return _mapping(node, {**node.value, "scope": replace(scope, value=[scope], written="")})
    return node


def _gpu(node: Node) -> Node:
    """A catalog name brings its figures along; what is written beside it wins. Where only a text can be said, as behind
    an option, it may hold the mapping."""
    if node.value is None:
        return _mapping(node, {})  # said aloud: there is none, and so no verdict
    if isinstance(node.value, str) and named_gpus.are_figures(node.value):
        node = _figures(node, node.value)
    node = _single("name")(node)
    if not isinstance(node.value, dict):
        return node
    given = node.value
    if {"total_bytes", "arch"} <= given.keys():
        return node
    if "name" not in given or not isinstance(given["name"].value, str):
        return node
    entry = named_gpus.look_up(given["name"].value, place=given["name"].place)
    facts: dict[str, str | int] = {"total_bytes": entry.total_bytes, "arch": entry.arch}
    filled = {key: replace(node, value=value, path=below(node.path, key)) for key, value in facts.items()}
    name = replace(given["name"], value=entry.name)
    return _mapping(node, {**filled, **given, "name": name})


def _figures(node: Node, written: str) -> Node:
    try:
        return placed(read_yaml(written, node.place), node.path, node.place)
    except SpecError as error:
        allowed, remedy = _ALLOWED[schema.Gpu], "write it as one word, in quotes"
        raise SpecError(error.problem, allowed=allowed, remedy=remedy, place=error.place) from None


def _train(node: Node) -> Node:
    """A mapping in the place of the sequence length says how lengths differ; its longest is the sequence length."""
    if not isinstance(node.value, dict) or "sequence_length" not in node.value:
        return node
    given = node.value["sequence_length"]
    if not isinstance(given.value, dict):
        return node
    if "lengths" in node.value:
        raise node.value["lengths"].error("is given twice", remedy="write train.sequence_length as a number beside it")
    said = {key: child for key, child in given.value.items() if key != "max"}
    longest = given.value.get("max") or _longest_of(said)
    if longest is None:
        raise given.error("has no longest sequence", allowed="{p50: 512, p99: 4096, max: 8192}, or a histogram")
    cut = replace(longest, path=given.path if longest.path != below(given.path, "max") else longest.path)
    lengths = replace(given, value=said)
    return _mapping(node, {**node.value, "sequence_length": cut, "lengths": lengths})


def _longest_of(said: dict[str, Node]) -> Node | None:
    """Of a histogram, or of given batches."""
    found = said.get("histogram")
    if found is not None and isinstance(found.value, dict):
        tokens = max(map(tokens_of, found.value), default=0)
        return replace(found, value=tokens, written="")
    found = said.get("batches")
    if found is not None and isinstance(found.value, list):
        numbers = [each.value for each in found.value if type(each.value) is int]
        return replace(found, value=max(numbers, default=0), written="")
    return None


ONE_OR_SEVERAL = ("train.compile.scope",)
"""Lists that a lone name may stand for."""
_SINGLE_KEYS = {
    schema.Loss: "name",
    schema.Optimizer: "name",
    schema.Recompute: "mode",
    schema.Gpu: "name",
    **dict.fromkeys((schema.DpReplicate, schema.DpShard, schema.Tp, schema.Pp, schema.Cp, schema.Ep), "degree"),
}
_REWRITINGS: dict[type, Callable[[Node], Node]] = {
    **{kind: _single(key) for kind, key in _SINGLE_KEYS.items()},
    schema.Optimizer: _optimizer,
    schema.Recompute: _recompute,
    schema.Compile: _compile,
    schema.Gpu: _gpu,
    schema.Train: _train,
}
_ALLOWED: dict[type, str] = {
    schema.Model: "a mapping with one of hf_config, factory and decoder",
    schema.Loss: "the name of a loss, or a mapping",
    schema.Optimizer: "the name of a class of torch.optim, or a mapping",
    schema.Recompute: "none, full, selective or {every: 2}",
    schema.Compile: "true, false, some of [model, blocks, loss, optimizer], or a mapping",
    schema.DpReplicate: "a degree, or a mapping",
    schema.DpShard: "a degree, or a mapping",
    schema.Tp: "a degree, or a mapping",
    schema.Pp: "a degree, or a mapping",
    schema.Cp: "a degree, or a mapping",
    schema.Ep: "a degree, or a mapping",
    schema.Gpu: "a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}",
}

"""Short ways to write a part of a job spec, as rewritings to the long one."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

from planner.errors import SpecError
from planner.job import named_gpus, schema
from planner.job.nodes import Node, below, placed
from planner.job.schema import tokens_of
from planner.job.yaml_text import read_yaml


@dataclass(frozen=True, slots=True)
class ShortForm:
    """What else may be written for a section of a spec."""

    allowed: str = "a mapping"
    """All that may be written, for messages."""
    key: str = ""
    """The key that a lone value stands for; empty: it is always a mapping, or rewritten."""
    rewrite: Callable[[Node], Node] = lambda node: node


def written_out(kind: type, node: Node) -> Node:
    """The node in the long form of the dataclass `kind`; itself if it is not in a short form."""
    form = find_form(kind)
    if kind is schema.Gpu and isinstance(node.value, str) and named_gpus.are_figures(node.value):
        # Where only a text can be said, as behind an option, it may hold the mapping.
        try:
            node = placed(read_yaml(node.value, node.place), node.path, node.place)
        except SpecError as error:
            remedy = "write it as one word, in quotes"
            raise SpecError(error.problem, allowed=form.allowed, remedy=remedy, place=error.place) from None
    if form.key and not (node.value is None or isinstance(node.value, dict | list)):
        node = replace(node, value={form.key: node})
    return form.rewrite(node)


def find_form(kind: type) -> ShortForm:
    """The short form of the dataclass `kind`."""
    return _FORMS.get(kind, ShortForm())


_MISSPELLED = 0.85
"""How alike a key and a field of the section are, by difflib's measure: `bucket_cap` is, 0.87 of `bucket_cap_mb`; of
torch's arguments `bucket_cap_mb_list` is not, 0.84."""


def _with_arguments(kind: type, node: Node) -> Node:
    """Keys that are no fields of the section, nor such with a letter wrong, are arguments of what it stands for."""
    if not isinstance(node.value, dict):
        return node
    own = [field.name for field in fields(kind) if field.name != "arguments"]
    arguments = {
        key: child
        for key, child in node.value.items()
        if key not in own and not difflib.get_close_matches(key, own, cutoff=_MISSPELLED)
    }
    if not arguments:
        return node
    written = {key: child for key, child in node.value.items() if key not in arguments}
    return replace(node, value={**written, "arguments": replace(node, value=arguments)})


def _recompute(node: Node) -> Node:
    """`{every: 2}` needs no mode."""
    if isinstance(node.value, dict) and "every" in node.value and "mode" not in node.value:
        mode = replace(node.value["every"], value="every", path=below(node.path, "mode"), written="")
        return replace(node, value={"mode": mode, **node.value})
    return node


def _compiled(node: Node) -> Node:
    """`true` asks for every default; names of scopes stand for the mapping with them."""
    if node.value is True:
        return replace(node, value={})
    if node.value is not None and not isinstance(node.value, dict):
        node = replace(node, value={"scope": node})
    return _with_arguments(schema.Compile, _listed(node, "scope"))


_optimizer = partial(_with_arguments, schema.Optimizer)
_replicas = partial(_with_arguments, schema.DpReplicate)


def _listed(node: Node, key: str) -> Node:
    """With a list in the place of a lone name."""
    given = node.value.get(key) if isinstance(node.value, dict) else None
    if given is None or not isinstance(given.value, str) or not isinstance(node.value, dict):
        return node
    return replace(node, value={**node.value, key: replace(given, value=[given], written="")})


def _adapter(node: Node) -> Node:
    return _with_arguments(schema.Adapter, _listed(node, "target_modules"))


def _gpu(node: Node) -> Node:
    """A catalog name brings its figures along; what is written beside it wins."""
    if node.value is None:
        return replace(node, value={})  # said aloud: there is none, and so no verdict
    if not isinstance(node.value, dict) or {"total_bytes", "arch"} <= node.value.keys():
        return node
    name = node.value.get("name")
    if name is None or not isinstance(name.value, str):
        return node
    entry = named_gpus.look_up(name.value, place=name.place)
    facts: dict[str, str | int] = {"total_bytes": entry.total_bytes, "arch": entry.arch}
    filled = {key: replace(node, value=value, path=below(node.path, key)) for key, value in facts.items()}
    return replace(node, value={**filled, **node.value, "name": replace(name, value=entry.name)})


def _train(node: Node) -> Node:
    """A mapping in the place of the sequence length says how lengths differ; its longest is the sequence length."""
    given = node.value.get("sequence_length") if isinstance(node.value, dict) else None
    if given is None or not isinstance(given.value, dict) or not isinstance(node.value, dict):
        return node
    if "lengths" in node.value:
        raise node.value["lengths"].error("is given twice", remedy="write train.sequence_length as a number beside it")
    longest = given.value.get("max")
    if longest is None:
        longest = _find_longest(given.value)
        if longest is None:
            raise given.error("has no longest sequence", allowed="{p50: 512, p99: 4096, max: 8192}, or a histogram")
        longest = replace(longest, path=given.path)
    lengths = replace(given, value={key: child for key, child in given.value.items() if key != "max"})
    return replace(node, value={**node.value, "sequence_length": longest, "lengths": lengths})


def _find_longest(lengths: dict[str, Node]) -> Node | None:
    """Of a histogram, or of given batches."""
    histogram, batches = lengths.get("histogram"), lengths.get("batches")
    if histogram is not None and isinstance(histogram.value, dict):
        return replace(histogram, value=max(map(tokens_of, histogram.value), default=0), written="")
    if batches is not None and isinstance(batches.value, list):
        numbers = [item.value for item in batches.value if type(item.value) is int]
        return replace(batches, value=max(numbers, default=0), written="")
    return None


ONE_OR_SEVERAL = ("train.compile.scope", "model.adapter.target_modules")
"""Lists that a lone name may stand for."""
_AXES = (schema.DpShard, schema.Tp, schema.Pp, schema.Cp, schema.Ep)
_COMPILED = "true, false, some of [model, blocks, loss, optimizer], or a mapping"
_FORMS: dict[type, ShortForm] = {
    schema.Model: ShortForm("a mapping with one of hf_config, factory and decoder"),
    schema.Train: ShortForm(rewrite=_train),
    schema.Adapter: ShortForm(rewrite=_adapter),
    schema.Loss: ShortForm("the name of a loss, or a mapping", "name"),
    schema.Optimizer: ShortForm("the name of a class of torch.optim, or a mapping", "name", _optimizer),
    schema.Recompute: ShortForm("none, full, selective or {every: 2}", "mode", _recompute),
    schema.Compile: ShortForm(_COMPILED, rewrite=_compiled),
    schema.Gpu: ShortForm("a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}", "name", _gpu),
    **dict.fromkeys(_AXES, ShortForm("a degree, or a mapping", "degree")),
    schema.DpReplicate: ShortForm("a degree, or a mapping", "degree", _replicas),
}

"""The matrix of `make gpu-truth`: its cases and operators, read from matrix.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from planner.job.loading import load_document
from planner.job.schema import Job

_CLUSTER = {"gpu": {"total_bytes": "80GiB", "arch": "sm_90"}}
"""A step does not ask what GPU it runs on; the spec does."""
SHARES = 24
"""Of the operator database: a process takes some twenty seconds for one."""
_SIZES = ("micro_batch_size", "sequence_length")
_AS_A_WHOLE = ("hf_config", "optimizer", "factory_arguments", "decoder", "inputs")
_SECTIONS = ("model", "train", "parallel", "allocator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One process: a job, a family of operators, or a share of torch's operator database."""

    name: str
    job: Job | None = None
    operators: tuple[Mapping[str, Any], ...] = ()
    share: tuple[int, int] | None = None
    """Every n-th operator of the database, and n."""
    alone: bool = False
    """No other case runs at the same time."""
    snapshot: bool = False

    @property
    def allocator_conf(self) -> str:
        return self.job.allocator.conf if self.job is not None else ""


def cases(*, small: bool = False) -> list[Case]:
    """All cases, what tells most first: the operator database and the operators, whose rules every step rests on, then
    the steps that want the GPU for themselves, then the rest. `small`: a rehearsal."""
    document = _document()
    steps = [_case(entry, document["models"][entry["of"]], small) for entry in document["cases"]]
    families = document["operators"].items()
    operators = [Case(name=f"operators-{family}", operators=tuple(entries)) for family, entries in families]
    shares = [Case(name=f"opinfo-share-{each:02}", share=(each, SHARES)) for each in range(SHARES)]
    return shares + operators + [c for c in steps if c.alone] + [c for c in steps if not c.alone]


@cache
def _document() -> dict[str, Any]:
    text = resources.files("planner.measuring").joinpath("matrix.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def _case(entry: Mapping[str, Any], model: Mapping[str, Any], small: bool) -> Case:
    parts = [{section: model[section] for section in _SECTIONS if section in model}]
    if small:
        parts.append(model["small"])
    own = {section: entry[section] for section in _SECTIONS if section in entry}
    if small:
        own = _merge_mappings(_shrunk(own), entry.get("small", {}))
    merged: dict[str, Any] = {}
    for part in (*parts, own):
        merged = _merge_mappings(merged, part)
    merged["cluster"] = {**_CLUSTER, "nodes": 1, "gpus_per_node": _ranks(merged.get("parallel", {}))}
    merged["metadata"] = {"name": entry["name"]}
    return Case(
        name=entry["name"],
        job=load_document(merged, f"matrix.yaml: {entry['name']}"),
        alone=entry.get("alone", False),
        snapshot=entry.get("snapshot", False),
    )


def _ranks(parallel: Mapping[str, Any]) -> int:
    """The product of the axes, each written as a number or as a mapping with its degree."""
    return math.prod(axis.get("degree", 1) if isinstance(axis, Mapping) else axis for axis in parallel.values())


def _shrunk(own: Mapping[str, Any]) -> dict[str, Any]:
    """A case's own sizes give way to those of the small model."""
    train = {
        key: value for key, value in own.get("train", {}).items() if key not in ("micro_batch_size", "sequence_length")
    }
    if "eval" in train:
        train["eval"] = {**train["eval"], "micro_batch_size": 2}
    kept = {key: value for key, value in own.items() if key not in ("train", "allocator")}
    return {**kept, "train": train}


def _merge_mappings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key not in _AS_A_WHOLE:
            merged[key] = _merge_mappings(old, value)
        else:
            merged[key] = value
    return merged

"""The matrix of `make gpu-truth`: its cases in the order of their value, read from matrix.yaml."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
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
DEVICE, DATABASE, ALONE, COMPILED, PROGRAMS, STEPS = (
    "what a process holds outside the allocator", "torch's operator database",
    "steps that want the GPU for themselves", "compiled steps", "programs as they are", "steps",
)  # fmt: skip
GROUP_SECONDS = {
    DEVICE: 12.0, DATABASE: 35.0, ALONE: 40.0, COMPILED: 80.0, PROGRAMS: 60.0, STEPS: 20.0,
}  # fmt: skip
"""Groups in the order of their value, and seconds that a case of each is expected to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One process: a job, a share of torch's operator database, a probe or a program."""

    name: str
    group: str
    job: Job | None = None
    share: tuple[int, int] | None = None
    """Every n-th operator of the database, and n."""
    probe: str = ""
    """A function of `gpu_truth.probes`."""
    program: tuple[str, ...] = ()
    """The arguments of python."""
    alone: bool = False
    """No other case runs at the same time."""
    snapshot: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def allocator_conf(self) -> str:
        return self.job.allocator.conf if self.job is not None else ""

    @property
    def is_on_paper(self) -> bool:
        """Whether the paper GPU can do the same: steps and operators."""
        return self.job is not None or self.share is not None


def cases(*, small: bool = False) -> list[Case]:
    """All cases, what tells most first; of the steps one of each kind before the others, that whose history is kept.
    `small`: a rehearsal."""
    found = [*_probes(), *_shares(), *_steps(small), *_programs(small)]
    order = list(GROUP_SECONDS)
    return sorted(found, key=lambda case: (order.index(case.group), case.group == STEPS and not case.snapshot))


def _probes() -> Iterator[Case]:
    for entry in _document()["probes"]:
        yield Case(
            name=entry["name"],
            group=DEVICE,
            probe=entry["probe"],
            alone=True,
            snapshot=entry.get("snapshot", False),
            environment=entry.get("environment", {}),
        )


def _shares() -> Iterator[Case]:
    for each in range(SHARES):
        yield Case(name=f"opinfo-share-{each:02}", group=DATABASE, share=(each, SHARES))


def _steps(small: bool) -> Iterator[Case]:
    document = _document()
    for entry in document["cases"]:
        job, alone = _job(entry, document["models"][entry["of"]], small), entry.get("alone", False)
        group = COMPILED if job.train.compile is not None else ALONE if alone else STEPS
        yield Case(name=entry["name"], group=group, job=job, alone=alone, snapshot=entry.get("snapshot", False))


def _programs(small: bool) -> Iterator[Case]:
    for entry in _document()["programs"]:
        command = entry["small" if small else "command"]
        yield Case(name=entry["name"], group=PROGRAMS, program=tuple(map(str, command)))


@cache
def _document() -> dict[str, Any]:
    text = Path(__file__).with_name("matrix.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def _job(entry: Mapping[str, Any], model: Mapping[str, Any], small: bool) -> Job:
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
    return load_document(merged, f"matrix.yaml: {entry['name']}")


def _ranks(parallel: Mapping[str, Any]) -> int:
    """The product of the axes, each written as a number or as a mapping with its degree."""
    return math.prod(axis.get("degree", 1) if isinstance(axis, Mapping) else axis for axis in parallel.values())


def _shrunk(own: Mapping[str, Any]) -> dict[str, Any]:
    """A case's own sizes give way to those of the small model."""
    train = {key: value for key, value in own.get("train", {}).items() if key not in _SIZES}
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

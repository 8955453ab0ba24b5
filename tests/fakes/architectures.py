"""The table of architectures (tests/data/architectures.yaml) as jobs, and what a step has left untrained of one."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import yaml

from planner.job.schema import Input, Job, Model, Train

TABLE = yaml.safe_load((Path(__file__).parents[1] / "data" / "architectures.yaml").read_text())["architectures"]
ONE_OF_EACH_KIND = {entry["kind"]: name for name, entry in reversed(TABLE.items())}


def job_of(entry: dict[str, Any], **train: Any) -> Job:
    """One iteration of a micro-batch of two."""
    inputs = {
        name: Input(**{**written, "shape": tuple(written["shape"])})
        for name, written in entry.get("inputs", {}).items()
    }
    train = {"micro_batch_size": 2, "sequence_length": entry.get("tokens", 16), "iterations": 1, **train}
    return Job(model=Model(hf_config=entry["config"], head=entry.get("head", "")), train=Train(inputs=inputs, **train))


def untrained(outcome: Any) -> list[str]:
    """Parameters that wanted a gradient and got none: the optimizer keeps no state of them."""
    kept = outcome.optimizer.state
    return [name for name, p in outcome.model.named_parameters() if p.requires_grad and p not in kept]


def expected_unused(entry: dict[str, Any], outcome: Any) -> list[str]:
    names = [name for name, _ in outcome.model.named_parameters()]
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in entry.get("unused", ()))]

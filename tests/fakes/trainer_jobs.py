"""Specs with `trainer` over a small Llama, their files beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from config_files import LLAMA

from planner.job.loading import load_job
from planner.job.schema import Job

FLAGS = {"per_device_train_batch_size": 2, "max_steps": 3, "report_to": "none", "save_strategy": "no"}


def written(path: Path, content: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def spec_of(
    folder: Path, gpus: int, *, config: Mapping[str, Any] = LLAMA, gpu: Any = "H100-SXM-80GB", **trainer: Any
) -> Path:
    """A spec over so many GPUs of a node."""
    written(folder / "config.json", config)
    content = {
        "model": {"hf_config": "config.json", "parameter_dtype": "bfloat16"},
        "train": {"sequence_length": 128},
        "trainer": trainer,
        "cluster": {"gpu": gpu, "gpus_per_node": gpus},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def job_of(folder: Path, gpus: int = 1, **said: Any) -> Job:
    """The job of :func:`spec_of`."""
    return load_job(spec_of(folder, gpus, **said))

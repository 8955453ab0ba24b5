"""Specs written into a folder, and their smallest parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.job.loading import load_job
from planner.job.schema import Job

DECODER = "model: {decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 1000}}\n"
TRAIN = "train: {sequence_length: 128}\n"
CLUSTER = "cluster: {gpu: H100-SXM-80GB}\n"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Job]:
    """Loads a spec that says only what matters; sections that are not given are the smallest that work."""

    def loaded(*, model: str = DECODER, train: str = TRAIN, cluster: str = CLUSTER, more: str = "") -> Job:
        path = tmp_path / "job.yaml"
        path.write_text(model + train + cluster + more, encoding="utf-8")
        return load_job(path)

    return loaded

"""Jobs small enough for a test, and their steps on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch

from planner.job.schema import Decoder, Input, Job, Model, Train
from planner.training import step

DECODER = Decoder(layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128)
FACTORIES = """
from torch import nn

def mlp(width=16, classes=10):
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, classes))

def frozen():
    model = mlp()
    model[0].requires_grad_(False)
    return model

def all_frozen():
    return mlp().requires_grad_(False)

def normed():
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(16, 10), nn.Linear(16, 10)

    def forward(self, x):
        return self.used(x)
"""
ROWS = {"x": Input(shape=(16,)), "labels": Input(shape=(), dtype="int64", maximum=10)}


@pytest.fixture
def decoder_job() -> Callable[..., Job]:
    """A job that trains the built-in decoder on two sequences of sixteen tokens."""

    def build(*, model: Mapping[str, Any] | None = None, parallel: Any = None, **train: Any) -> Job:
        trained = Train(**{"micro_batch_size": 2, "sequence_length": 16, "iterations": 2, **train})
        more = {} if parallel is None else {"parallel": parallel}
        return Job(model=Model(**{"decoder": DECODER, **(model or {})}), train=trained, **more)

    return build


@pytest.fixture
def factory_job(tmp_path: Any) -> Callable[..., Job]:
    """A job that trains what a factory of the module `shop` builds, by default a multi-layer perceptron."""
    (tmp_path / "shop.py").write_text(FACTORIES)

    def build(name: str = "mlp", *, parallel: Any = None, model: Mapping[str, Any] | None = None, **train: Any) -> Job:
        trained = Train(**{"micro_batch_size": 4, "inputs": ROWS, "iterations": 2, **train})
        more = {} if parallel is None else {"parallel": parallel}
        made = Model(**{"factory": f"shop:{name}", "factory_path": str(tmp_path), **(model or {})})
        return Job(model=made, train=trained, **more)

    return build


@pytest.fixture
def run() -> Callable[..., step.Outcome]:
    """Runs a job's step on the cpu."""
    return partial(step.run, device=torch.device("cpu"))

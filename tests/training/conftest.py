"""Jobs small enough for a test, and an observer that writes down what it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from planner.events import Category, Phase
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


@dataclass
class Notebook:
    """An observer that writes down what it is told, and calls `at_mark` at every mark."""

    at_mark: Callable[[Phase, int], None] = lambda _phase, _iteration: None
    follows_modules: bool = False
    marks: list[tuple[str, int]] = field(default_factory=list)
    roles: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    regions: list[tuple[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    depth: int = 0

    def mark(self, phase: Phase, iteration: int) -> None:
        self.marks.append((phase.value, iteration))
        self.at_mark(phase, iteration)

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        self.roles.append((category.value, name, tuple(tensor.shape)))

    @contextmanager
    def region(self, category: Category, name: str = "") -> Iterator[None]:
        assert self.depth == 0, "regions never nest"
        self.depth += 1
        self.regions.append((category.value, name))
        yield
        self.depth -= 1

    def enter(self, path: str) -> None:
        self.paths.append(path)

    def leave(self) -> None:
        self.paths.append("<")

    def names(self, category: str) -> list[str]:
        """Names told for a category, in order."""
        return [name for told, name, _ in self.roles if told == category]


@pytest.fixture
def notebook() -> type[Notebook]:
    return Notebook


@pytest.fixture
def run() -> Callable[..., step.Outcome]:
    """Runs a job's step on the cpu."""

    def go(job: Job, observer: Any = None) -> step.Outcome:
        return step.run(job, torch.device("cpu"), observer)

    return go

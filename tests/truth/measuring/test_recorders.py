"""What is heard of a program on a real device: its phases, what its memory is for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from planner.events import Category, Phase
from planner.truth.measuring.job_rank import recorded
from tests.fakes.process_groups import gloo_group_of_one


class Notes:
    """Writes down what it hears, and whether garbage is collected when a phase begins."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, int]] = []
        self.roles: list[tuple[str, str]] = []
        self.regions: list[tuple[str, str]] = []
        self.collects: set[bool] = set()

    def mark(self, phase: Phase, iteration: int) -> None:
        self.marks.append((phase.value, iteration))
        self.collects.add(gc.isenabled())

    def assign(self, _tensor: Tensor, category: Category, name: str = "") -> None:
        self.roles.append((category.value, name))

    @contextmanager
    def region(self, category: Category, name: str = "") -> Iterator[None]:
        self.regions.append((category.value, name))
        yield

    def names(self, category: str) -> list[str]:
        """Of a category, each once."""
        return list(dict.fromkeys(name for found, name in self.roles if found == category))


@pytest.fixture
def group_of_one() -> Iterator[None]:
    with gloo_group_of_one():
        yield


def train(model: nn.Module, iterations: int = 1) -> None:
    """Names all that it does, and evaluates after each iteration."""
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(iterations):
        with record_function("planner.forward"):
            loss = model(torch.ones(2, 4)).sum()
        with record_function("planner.backward"):
            loss.backward()
        with record_function("planner.optimizer_step"):
            optimizer.step()
            optimizer.zero_grad()
        with record_function("planner.eval"), torch.no_grad():
            model(torch.ones(2, 4))


def heard_of(model: nn.Module, iterations: int = 1) -> Notes:
    notes = Notes()
    with recorded(notes, "cpu"):
        train(model, iterations)
    return notes


def test_a_program_is_heard_to_name_its_phases() -> None:
    notes = heard_of(nn.Linear(4, 4), iterations=2)

    assert notes.marks == [
        ("load", 0),
        ("forward", 1), ("backward", 1), ("optimizer_step", 1), ("eval", 1),
        ("forward", 2), ("backward", 2), ("optimizer_step", 2), ("eval", 2),
    ]  # fmt: skip


def test_of_a_program_that_names_none_forwards_and_backwards_are_its_phases() -> None:
    notes = Notes()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with recorded(notes, "cpu"):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.ones(2, 4))

    micro_batch = ("forward", "backward", "optimizer_step")
    assert notes.marks == [
        ("load", 0), *[(phase, iteration) for iteration in (1, 1, 2, 2) for phase in micro_batch], ("eval", 2),
    ]  # fmt: skip


def test_every_tensor_that_stays_is_named() -> None:
    notes = heard_of(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))

    trained = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert notes.names("parameter") == [*trained, "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert sorted(notes.names("gradient")) == sorted(trained)
    assert notes.names("optimizer_state") == [
        f"{name}.{state}" for name in trained for state in ("step", "exp_avg", "exp_avg_sq")
    ]


def test_garbage_is_collected_where_the_program_says_so_alone() -> None:
    gc.unfreeze()
    assert heard_of(nn.Linear(4, 4)).collects == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_nothing_is_heard_of_what_is_trained_afterwards() -> None:
    notes = heard_of(nn.Linear(4, 4))
    heard = list(notes.roles)

    train(nn.Linear(4, 4))

    assert notes.roles == heard


@pytest.mark.usefixtures("group_of_one")
def test_buckets_and_communication_of_replicas_are_named() -> None:
    notes = Notes()
    with recorded(notes, "cpu"):
        train(DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))), iterations=2)

    assert notes.regions[:2] == [("communication", "init_sync"), ("bucket", "ddp")]
    assert set(notes.regions[2:]) == {("bucket", "ddp"), ("communication", "buffers")}


@pytest.mark.usefixtures("group_of_one")
def test_what_a_hook_of_replicas_takes_is_communication() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    notes = Notes()
    with recorded(notes, "cpu"):
        model: Any = DistributedDataParallel(nn.Linear(4, 4))
        model.register_comm_hook(None, fp16_compress_hook)
        train(model)

    assert ("communication", "fp16_compress_hook") in notes.regions

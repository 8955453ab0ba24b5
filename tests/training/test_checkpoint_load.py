"""A checkpoint is loaded before training: onto the host or the device, dropped or kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.job.schema import CheckpointLoad, Job
from planner.training import step
from planner.training.checkpoints import Loading

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
CPU = torch.device("cpu")


def loading_of(model: nn.Module, **spec: Any) -> Loading:
    """Of a model on its own device."""
    (device,) = {parameter.device for parameter in model.parameters()}
    optimizer = torch.optim.SGD(model.parameters())
    return Loading(spec=CheckpointLoad(**spec), model=model, optimizer=optimizer, device=device)


def test_loading_what_the_model_was_changes_nothing(factory_job: JobOf, run: Run) -> None:
    plain = run(factory_job()).model.state_dict()
    loaded = run(factory_job(checkpoint_load=CheckpointLoad())).model.state_dict()

    assert all(torch.equal(plain[name], loaded[name]) for name in plain)


def test_tied_weights_are_loaded_once() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(128, 32), "head": nn.Linear(32, 128, bias=False)})
    model["head"].weight = model["embedding"].weight

    state = loading_of(model, map_location="device").model_state()

    assert state["head.weight"] is state["embedding.weight"]


def test_a_checkpoint_on_the_host_of_another_device_takes_no_memory_there() -> None:
    model = nn.Linear(1000, 1000, device="meta")

    state = loading_of(model).model_state()

    assert {name: (t.shape, t.device, t.untyped_storage().nbytes()) for name, t in state.items()} == {
        "weight": (torch.Size([1000, 1000]), CPU, 4_000_000),
        "bias": (torch.Size([1000]), CPU, 4_000),
    }


def test_a_checkpoint_on_the_device_is_there() -> None:
    loading = loading_of(nn.Linear(1000, 1000, device="meta"), map_location="device")

    assert {tensor.device.type for tensor in loading.model_state().values()} == {"meta"}

"""A checkpoint is loaded before training: onto the host or the device, dropped or kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from planner.job.schema import CheckpointLoad, Decoder, Job
from planner.training import step
from planner.training.checkpoints import Loading
from planner.training.observers import NullObserver

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
CPU = torch.device("cpu")


def test_what_is_loaded_onto_the_device_is_told(factory_job: JobOf, run: Run, notebook: Any) -> None:
    watching = notebook()

    run(factory_job(iterations=0, checkpoint_load=CheckpointLoad(map_location="device")), watching)

    assert watching.names("other") == [
        f"checkpoint.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")
    ]
    assert watching.marks == [("load", 0), ("checkpoint_load", 0)]


def test_loading_what_the_model_was_changes_nothing(factory_job: JobOf, run: Run) -> None:
    plain = run(factory_job()).model.state_dict()
    loaded = run(factory_job(checkpoint_load=CheckpointLoad())).model.state_dict()

    assert all(torch.equal(plain[name], loaded[name]) for name in plain)


def test_tied_weights_are_loaded_once(decoder_job: JobOf, run: Run, notebook: Any) -> None:
    tied = Decoder(layers=1, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128, tie_embeddings=True)
    watching = notebook()

    run(
        decoder_job(model={"decoder": tied}, iterations=1, checkpoint_load=CheckpointLoad(map_location="device")),
        watching,
    )

    assert [shape for told, _, shape in watching.roles if told == "other"].count((128, 32)) == 1


def test_a_checkpoint_on_the_host_of_another_device_takes_no_memory_there() -> None:
    model = nn.Linear(1000, 1000, device="meta")
    loading = Loading(
        spec=CheckpointLoad(), model=model, optimizer=torch.optim.SGD(model.parameters()), device=torch.device("meta"),
        observer=NullObserver(),
    )  # fmt: skip

    state = loading.model_state()

    assert {name: (t.shape, t.device, t.untyped_storage().nbytes()) for name, t in state.items()} == {
        "weight": (torch.Size([1000, 1000]), CPU, 4_000_000),
        "bias": (torch.Size([1000]), CPU, 4_000),
    }


@pytest.mark.parametrize("mmap", [False, True])
def test_a_checkpoint_on_the_device_is_there_whether_its_file_is_mapped_or_not(mmap: bool) -> None:
    model = nn.Linear(1000, 1000, device="meta")
    loading = Loading(
        spec=CheckpointLoad(map_location="device", mmap=mmap), model=model,
        optimizer=torch.optim.SGD(model.parameters()), device=torch.device("meta"), observer=NullObserver(),
    )  # fmt: skip

    assert {tensor.device.type for tensor in loading.model_state().values()} == {"meta"}

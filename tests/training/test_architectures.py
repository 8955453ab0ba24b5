"""A training step of every architecture in the table: forward, backward and step, each parameter trained."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from planner.job.schema import Input, Job, Loss, Model, Optimizer, Train
from planner.training import step

TABLE = yaml.safe_load((Path(__file__).parents[1] / "data" / "architectures.yaml").read_text())["architectures"]
KINDS = {"decoder", "experts", "state_space", "encoder", "encoder_decoder", "vision", "audio", "multimodal"}


def job_of(entry: dict[str, Any], loss: str = "cross_entropy") -> Job:
    inputs = {
        name: Input(**{**written, "shape": tuple(written["shape"])})
        for name, written in entry.get("inputs", {}).items()
    }
    train = Train(
        micro_batch_size=2,
        sequence_length=entry.get("tokens", 16),
        inputs=inputs,
        iterations=1,
        loss=Loss(name=loss),
        optimizer=Optimizer(name="SGD", arguments={"momentum": 0.9}),
    )
    return Job(model=Model(hf_config=entry["config"], head=entry.get("head", "")), train=train)


def untrained(outcome: step.Outcome) -> list[str]:
    """Parameters that wanted a gradient and got none: the optimizer keeps no momentum of them."""
    kept = outcome.optimizer.state
    return [name for name, p in outcome.model.named_parameters() if p.requires_grad and p not in kept]


def expected_unused(entry: dict[str, Any], outcome: step.Outcome) -> list[str]:
    names = [name for name, _ in outcome.model.named_parameters()]
    return [n for n in names if any(fnmatch.fnmatchcase(n, pattern) for pattern in entry.get("unused", ()))]


ONE_OF_EACH_KIND = {entry["kind"]: name for name, entry in reversed(TABLE.items())}.values()


@pytest.mark.parametrize("name", TABLE)
def test_a_step_trains_every_parameter(name: str) -> None:
    outcome = step.run(job_of(TABLE[name]), torch.device("cpu"))

    assert untrained(outcome) == expected_unused(TABLE[name], outcome)


@pytest.mark.parametrize("name", ["llama", "mixtral", "t5", "segformer", "wav2vec2", "clip"])
def test_a_step_with_the_models_own_loss_trains_every_parameter(name: str) -> None:
    outcome = step.run(job_of(TABLE[name], loss="model"), torch.device("cpu"))

    assert untrained(outcome) == []


def test_the_table_has_every_kind_and_enough_of_them() -> None:
    assert {entry["kind"] for entry in TABLE.values()} == KINDS
    assert len(TABLE) >= 45

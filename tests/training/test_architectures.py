"""A training step of every architecture in the table: forward, backward and step, each parameter trained."""

from __future__ import annotations

import pytest
import torch
from architectures import ONE_OF_EACH_KIND, TABLE, expected_unused, job_of, untrained

from planner.job.schema import Loss, Optimizer
from planner.training import step

KINDS = {"decoder", "experts", "state_space", "encoder", "encoder_decoder", "vision", "audio", "multimodal"}


def trained(name: str, loss: str) -> step.Outcome:
    optimizer = Optimizer(name="SGD", arguments={"momentum": 0.9})
    return step.run(job_of(TABLE[name], loss=Loss(name=loss), optimizer=optimizer), torch.device("cpu"))


@pytest.mark.parametrize("name", TABLE)
def test_a_step_trains_every_parameter(name: str) -> None:
    outcome = trained(name, "cross_entropy")

    assert untrained(outcome) == expected_unused(TABLE[name], outcome)


@pytest.mark.parametrize("name", ["llama", "mixtral", "t5", "segformer", "wav2vec2", "clip"])
def test_a_step_with_the_models_own_loss_trains_every_parameter(name: str) -> None:
    assert untrained(trained(name, "model")) == []


def test_the_table_has_every_kind_and_enough_of_them() -> None:
    assert set(ONE_OF_EACH_KIND) == KINDS
    assert len(TABLE) >= 45

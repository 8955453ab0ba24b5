"""A step names its phases in their order, and is the same each time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from planner.events import Phase
from planner.job.schema import CheckpointLoad, Eval, Job
from planner.training import step
from planner.training.phases import Phases

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]


def test_phases_come_in_order_and_forward_and_backward_with_every_micro_batch(factory_job: JobOf, run: Run) -> None:
    heard: list[tuple[Phase, int]] = []

    with Phases(lambda phase, iteration: heard.append((phase, iteration))).heard():
        run(factory_job(gradient_accumulation_steps=2, checkpoint_load=CheckpointLoad(), eval=Eval()))

    assert heard == [
        ("checkpoint_load", 0),
        ("forward", 1), ("backward", 1), ("forward", 1), ("backward", 1), ("optimizer_step", 1),
        ("forward", 2), ("backward", 2), ("forward", 2), ("backward", 2), ("optimizer_step", 2),
        ("eval", 2),
    ]  # fmt: skip


def test_a_step_draws_the_same_random_numbers_each_time(decoder_job: JobOf, run: Run) -> None:
    first, second = (run(decoder_job()).model.state_dict() for _ in range(2))

    assert all(torch.equal(first[name], second[name]) for name in first)

"""What an observer is told: phases in their order, categories by identity, modules by path."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from planner.job.schema import CheckpointLoad, Eval, Job
from planner.training import step

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]


def test_phases_come_in_order_and_forward_and_backward_with_every_micro_batch(
    factory_job: JobOf, run: Run, notebook: Any
) -> None:
    watching = notebook()

    run(factory_job(gradient_accumulation_steps=2, checkpoint_load=CheckpointLoad(), eval=Eval()), watching)

    assert watching.marks == [
        ("load", 0), ("checkpoint_load", 0),
        ("forward", 1), ("backward", 1), ("forward", 1), ("backward", 1), ("optimizer_step", 1),
        ("forward", 2), ("backward", 2), ("forward", 2), ("backward", 2), ("optimizer_step", 2),
        ("eval", 2),
    ]  # fmt: skip


def test_every_tensor_that_stays_is_told_by_name(factory_job: JobOf, run: Run, notebook: Any) -> None:
    watching = notebook()

    run(factory_job("normed", iterations=1), watching)

    assert watching.names("parameter") == [
        "0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias",
        "1.running_mean", "1.running_var", "1.num_batches_tracked",
    ]  # fmt: skip
    assert sorted(watching.names("gradient")) == sorted(watching.names("parameter")[:6])
    assert watching.names("input") == ["x", "labels"]
    assert watching.names("optimizer_state") == [
        f"{name}.{state}" for name in watching.names("parameter")[:6] for state in ("step", "exp_avg", "exp_avg_sq")
    ]


def test_a_follower_is_told_which_module_runs(factory_job: JobOf, run: Run, notebook: Any) -> None:
    watching = notebook(follows_modules=True)

    run(factory_job(iterations=1), watching)

    assert watching.paths == ["", "0", "<", "1", "<", "2", "<", "3", "<", "4", "<", "<"]


def test_a_step_without_an_observer_installs_no_hook(factory_job: JobOf, run: Run) -> None:
    seen: list[Any] = []

    class Nosy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            hooks = [p._post_accumulate_grad_hooks for p in self.param_groups[0]["params"]]
            seen.extend([hooks, dict(torch.nn.modules.module._global_forward_pre_hooks)])
            return super().step(closure)

    original, torch.optim.SGD = torch.optim.SGD, Nosy  # type: ignore[misc]
    try:
        from planner.job.schema import Optimizer

        run(factory_job(iterations=1, optimizer=Optimizer(name="SGD")))
    finally:
        torch.optim.SGD = original  # type: ignore[misc]

    assert seen == [[None] * 6, {}]


def test_no_hook_outlives_the_step(factory_job: JobOf, run: Run, notebook: Any) -> None:
    outcome = run(factory_job(), notebook(follows_modules=True))

    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
    assert not any(p._post_accumulate_grad_hooks for p in outcome.model.parameters())


def test_garbage_is_collected_at_set_places_only(factory_job: JobOf, run: Run, notebook: Any) -> None:
    enabled: list[bool] = []

    run(factory_job(), notebook(at_mark=lambda _phase, _iteration: enabled.append(gc.isenabled())))

    assert set(enabled) == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_step_draws_the_same_random_numbers_each_time(decoder_job: JobOf, run: Run) -> None:
    first, second = (run(decoder_job()).model.state_dict() for _ in range(2))

    assert all(torch.equal(first[name], second[name]) for name in first)

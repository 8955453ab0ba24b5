"""Accumulation, clipping, evaluation, and gradients between the iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from planner.events import Phase
from planner.job.schema import Eval, Job, Loss, Optimizer
from planner.training import loop, step
from planner.training.phases import Phases

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]


def parameters(outcome: step.Outcome) -> dict[str, torch.Tensor]:
    return dict(outcome.model.named_parameters())


def distance(start: dict[str, torch.Tensor], end: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([(start[name] - end[name]).detach().flatten() for name in start]).norm())


def test_accumulated_micro_batches_make_one_step(factory_job: JobOf, run: Run) -> None:
    outcome = run(factory_job(gradient_accumulation_steps=3, iterations=2))

    assert {float(state["step"]) for state in outcome.optimizer.state.values()} == {2.0}


def test_gradients_add_up_over_the_micro_batches_as_their_mean(factory_job: JobOf, run: Run) -> None:
    """With all-equal batches the accumulated gradient is that of one of them."""

    def gradient(steps: int) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        original = torch.optim.SGD.step

        def spy(optimizer: torch.optim.SGD, closure: Any = None) -> Any:
            kept.append(optimizer.param_groups[0]["params"][0].grad.clone())
            return original(optimizer, closure)

        inputs = loop.inputs.make
        made: list[Any] = []

        def same(*arguments: Any, **keywords: Any) -> Any:
            made.append(made[0] if made else inputs(*arguments, **keywords))
            return made[0]

        torch.optim.SGD.step, loop.inputs.make = spy, same  # type: ignore[method-assign,assignment]
        try:
            run(factory_job(gradient_accumulation_steps=steps, iterations=1, optimizer=Optimizer(name="SGD")))
        finally:
            torch.optim.SGD.step, loop.inputs.make = original, inputs  # type: ignore[method-assign]
        return kept[0]

    torch.testing.assert_close(gradient(4), gradient(1))


def test_clipping_bounds_the_norm_of_all_gradients(factory_job: JobOf, run: Run) -> None:
    """A plain SGD step with learning rate 1 moves the parameters by exactly the clipped gradient."""
    sgd = Optimizer(name="SGD", arguments={"lr": 1.0})
    start = parameters(run(factory_job(iterations=0)))

    def moved(limit: float) -> float:
        end = parameters(run(factory_job(iterations=1, optimizer=sgd, gradient_clipping=limit)))
        return distance(start, end)

    assert moved(0.0) > 0.5
    assert abs(moved(0.01) - 0.01) < 1e-5


def test_clipping_counts_the_gradients_without_their_scale(decoder_job: JobOf, run: Run) -> None:
    sgd = Optimizer(name="SGD", arguments={"lr": 1.0})
    start = parameters(run(decoder_job(iterations=0)))

    end = parameters(run(decoder_job(iterations=1, optimizer=sgd, gradient_clipping=0.01, precision="fp16_autocast")))

    assert abs(distance(start, end) - 0.01) < 1e-5


def test_gradients_are_dropped_after_the_step_or_kept_as_zeros(factory_job: JobOf, run: Run) -> None:
    dropped = run(factory_job()).model.parameters()
    kept = run(factory_job(zero_grad_set_to_none=False)).model.parameters()

    assert [parameter.grad for parameter in dropped] == [None] * 6
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in kept)


def evaluations(job: Job, run: Run) -> list[int]:
    found: list[int] = []
    with Phases(lambda phase, iteration: found.append(iteration) if phase is Phase.EVAL else None).heard():
        run(job)
    return found


def test_evaluation_comes_after_every_so_many_iterations_and_at_least_once(factory_job: JobOf, run: Run) -> None:
    assert evaluations(factory_job(iterations=4, eval=Eval(every=2)), run) == [2, 4]
    assert evaluations(factory_job(iterations=3, eval=Eval(every=2)), run) == [2]
    assert evaluations(factory_job(iterations=2, eval=Eval(every=100)), run) == [2]
    assert evaluations(factory_job(iterations=2), run) == []


def test_evaluation_makes_no_graph_trains_nothing_and_has_its_own_batch_size(factory_job: JobOf, run: Run) -> None:
    seen: set[tuple[int, bool, bool]] = set()

    def look(module: Any, _arguments: Any, output: torch.Tensor) -> None:
        seen.add((len(output), output.requires_grad, module.training))

    handle = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        outcome = run(factory_job(eval=Eval(micro_batch_size=7)))
    finally:
        handle.remove()

    assert seen == {(4, True, True), (7, False, False)}
    assert outcome.model.training


def test_the_output_of_the_model_ends_before_the_backward(decoder_job: JobOf, run: Run) -> None:
    """With a sum as loss nothing needs the logits, and nobody holds them."""
    import weakref

    logits: list[Any] = []
    alive: list[bool] = []

    def note_backward(phase: Phase, _iteration: int) -> None:
        if phase is Phase.BACKWARD:
            alive.append(logits[-1]() is not None)

    def look(module: Any, _arguments: Any, output: Any) -> None:
        if type(module).__name__ == "Decoder":
            logits.append(weakref.ref(output))

    handle = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        with Phases(note_backward).heard():
            run(decoder_job(loss=Loss(name="sum")))
    finally:
        handle.remove()

    assert alive == [False, False]

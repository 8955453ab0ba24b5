"""Any optimizer of torch.optim with its own arguments, and what is said to one that does not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from planner.errors import SpecError
from planner.job.schema import Job, Optimizer
from planner.training import optimizers, step

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]


def test_arguments_arrive(factory_job: JobOf, run: Run) -> None:
    outcome = run(factory_job(optimizer=Optimizer(arguments={"lr": 0.5, "betas": [0.8, 0.9]}), iterations=1))

    assert (outcome.optimizer.defaults["lr"], outcome.optimizer.defaults["betas"]) == (0.5, (0.8, 0.9))


def test_an_unknown_optimizer_is_refused_with_the_nearest_names(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as refusal:
        run(factory_job(optimizer=Optimizer(name="adamv")))

    assert str(refusal.value) == (
        "train.optimizer.name: torch.optim has no optimizer 'adamv'\n"
        f"  allowed: {', '.join(optimizers.names_of_torch())}\n"
        "  change:  did you mean Adam, AdamW, Adamax?"
    )


def test_an_argument_that_the_class_does_not_take_is_refused_with_those_it_takes(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as refusal:
        run(factory_job(optimizer=Optimizer(name="SGD", arguments={"momentun": 0.9})))

    assert str(refusal.value) == (
        "train.optimizer.momentun: SGD does not take the argument 'momentun'\n"
        "  allowed: lr, momentum, dampening, weight_decay, nesterov, maximize, foreach, differentiable, fused\n"
        "  change:  did you mean `momentum`?"
    )


def test_a_value_that_the_class_refuses_is_refused_in_its_words(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as refusal:
        run(factory_job(optimizer=Optimizer(name="SGD", arguments={"lr": -1.0})))

    assert str(refusal.value) == "train.optimizer: SGD refuses its arguments: Invalid learning rate: -1.0"


def test_an_optimizer_that_wants_a_closure_is_refused(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError, match="LBFGS evaluates the model several times in one step"):
        run(factory_job(optimizer=Optimizer(name="LBFGS")))


def test_a_model_with_nothing_to_train_is_refused(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as refusal:
        run(factory_job("all_frozen"))

    assert str(refusal.value) == "model: no parameter of the model needs a gradient: there is nothing to train"


def kept(name: str, parameter: torch.nn.Parameter, **arguments: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """The tensors of the state after a step, and whether they have memory."""
    optimizer = optimizers.build(Optimizer(name=name, arguments=arguments), [parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter].items()
    return {
        key: (tuple(value.shape), f"{value.dtype} {value.device}") for key, value in state if torch.is_tensor(value)
    }


EIGHT_BITS, FULL = ((500, 256), "torch.uint8 cpu"), ((500, 256), "torch.float32 cpu")
SCALES, TABLE = ((500,), "torch.float32 cpu"), ((256,), "torch.float32 cpu")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("bitsandbytes.AdamW8bit", {},
         {"state1": EIGHT_BITS, "state2": EIGHT_BITS, "qmap1": TABLE, "qmap2": TABLE, "absmax1": SCALES,
          "absmax2": SCALES}),
        ("bitsandbytes.Lion8bit", {}, {"state1": EIGHT_BITS, "qmap1": TABLE, "absmax1": SCALES}),
        ("bitsandbytes.Lion", {}, {"state1": FULL}),
        ("bitsandbytes.AdEMAMix8bit", {},
         {"state1": ((2, 500, 256), "torch.uint8 cpu"), "state2": EIGHT_BITS, "qmap1": TABLE, "qmap2": TABLE,
          "absmax1": ((2, 500), "torch.float32 cpu"), "absmax2": SCALES}),
        ("transformers.Adafactor", {"lr": 0.1, "relative_step": False, "scale_parameter": False},
         {"exp_avg_sq_row": ((500,), "torch.float32 cpu"), "exp_avg_sq_col": TABLE, "RMS": ((), "torch.float32 cpu")}),
    ],
)  # fmt: skip
def test_the_state_of_other_packages_optimizers(name: str, arguments: dict[str, Any], expected: dict[str, Any]) -> None:
    assert kept(name, torch.nn.Parameter(torch.zeros(500, 256)), **arguments) == expected

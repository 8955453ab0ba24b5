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


def states(outcome: step.Outcome) -> set[str]:
    return {key for state in outcome.optimizer.state.values() for key, value in state.items() if torch.is_tensor(value)}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("SGD", {}, set()),
        ("SGD", {"momentum": 0.9}, {"momentum_buffer"}),
        ("Adam", {}, {"step", "exp_avg", "exp_avg_sq"}),
        ("AdamW", {"fused": True}, {"step", "exp_avg", "exp_avg_sq"}),
        ("AdamW", {"foreach": False, "betas": [0.9, 0.95], "amsgrad": True},
         {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
        ("RMSprop", {"alpha": 0.9}, {"step", "square_avg"}),
        ("Adagrad", {}, {"step", "sum"}),
        ("Adadelta", {}, {"step", "square_avg", "acc_delta"}),
        ("Adamax", {}, {"step", "exp_avg", "exp_inf"}),
        ("NAdam", {}, {"step", "mu_product", "exp_avg", "exp_avg_sq"}),
        ("RAdam", {}, {"step", "exp_avg", "exp_avg_sq"}),
        ("ASGD", {}, {"step", "eta", "mu", "ax"}),
        ("Rprop", {}, {"step", "prev", "step_size"}),
        ("Adafactor", {}, {"step", "row_var", "col_var", "variance"}),
    ],
)  # fmt: skip
def test_an_optimizer_keeps_its_own_state(
    factory_job: JobOf, run: Run, name: str, arguments: dict[str, Any], expected: set[str]
) -> None:
    outcome = run(factory_job(optimizer=Optimizer(name=name, arguments=arguments), iterations=1))

    assert states(outcome) == expected
    assert type(outcome.optimizer) is getattr(torch.optim, name)


def test_arguments_arrive(factory_job: JobOf, run: Run) -> None:
    outcome = run(factory_job(optimizer=Optimizer(arguments={"lr": 0.5, "betas": [0.8, 0.9]}), iterations=1))

    assert (outcome.optimizer.defaults["lr"], outcome.optimizer.defaults["betas"]) == (0.5, (0.8, 0.9))


def test_an_unknown_optimizer_is_refused_with_the_nearest_names(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as refusal:
        run(factory_job(optimizer=Optimizer(name="adamv")))

    assert str(refusal.value) == (
        "train.optimizer.name: torch.optim has no optimizer 'adamv'\n"
        f"  allowed: {', '.join(optimizers.all_names())}\n"
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

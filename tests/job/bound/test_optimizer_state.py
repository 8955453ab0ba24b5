"""What an optimizer keeps of each element: never more than torch's own class does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from planner.job.bound.lower_bound import state_bytes
from planner.job.schema import Optimizer
from planner.training import optimizers

ELEMENTS = 4096 * 4
ARGUMENTS: list[dict[str, Any]] = [
    {}, {"amsgrad": True}, {"momentum": 0.9}, {"momentum": 0.9, "centered": True}, {"momentum": 0.0},
]  # fmt: skip
EXACT = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


def kept_bytes(spec: Optimizer, dtype: torch.dtype) -> int:
    """After one step, of a parameter; tensors of one element aside."""
    parameter = torch.nn.Parameter(torch.zeros(128, ELEMENTS // 128, dtype=dtype))
    optimizer = optimizers.build(spec, [parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [each for each in optimizer.state[parameter].values() if isinstance(each, torch.Tensor)]
    return sum(each.numel() * each.itemsize for each in tensors if each.numel() > 1)


@pytest.mark.parametrize(
    "name", [*optimizers.names_of_torch(), "bitsandbytes.AdamW8bit", "bitsandbytes.Lion", "bitsandbytes.AdEMAMix8bit"]
)
def test_no_more_than_the_optimizer_itself(name: str) -> None:
    """Of each dtype and argument that it takes."""
    taken = 0
    for dtype, arguments in itertools.product((torch.float32, torch.bfloat16), ARGUMENTS):
        spec = Optimizer(name=name, arguments=arguments)
        try:
            kept = kept_bytes(spec, dtype)
        except Exception:  # no such argument, or no such parameter
            continue
        taken += 1

        said = state_bytes(spec, dtype.itemsize) * ELEMENTS
        assert said <= kept, (dtype, arguments)
        assert said == kept or name not in EXACT, (dtype, arguments)
    assert taken or name not in EXACT


@pytest.mark.parametrize("name", ["Adafactor", "Muon", "SparseAdam", "bitsandbytes.PagedAdamW8bit", "Unheard"])
def test_of_others_nothing_is_known(name: str) -> None:
    assert state_bytes(Optimizer(name=name), 4) == 0


@pytest.mark.parametrize("momentum", ["0.9", True, None, [0.9], float("nan"), -1])
def test_a_momentum_that_is_no_number_counts_nothing(momentum: Any) -> None:
    assert state_bytes(Optimizer(name="SGD", arguments={"momentum": momentum}), 4) == 0

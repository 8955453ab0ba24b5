"""Operators over many tensors at once: what each of them takes on CUDA.

Source: torch 2.13, aten/src/ATen/native/cuda/Foreach*.cu, ForeachReduceOp.cu.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from planner.upstream import torch_releases

NUMBER = {"number": 2.0, "List[number]": [1.0, 1.0, 1.0], "bool": False}
EVERY = sorted(
    name.removeprefix("aten::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::_foreach_") and not name.endswith("out")
)
# Sizes that are not those below, scalars in a tensor that has to be on the host, or reductions.
OTHERS = {
    "_foreach_addcdiv.Tensor",
    "_foreach_addcmul.Tensor",
    "_foreach_copy",
    "_foreach_max",
    "_foreach_mm",
    "_foreach_norm.Scalar",
    "_foreach_powsum.Scalar",
}


def tensors() -> list[torch.Tensor]:
    return [torch.empty(*shape, device="cuda") for shape in ((5, 7), (100_000,), (3,))]


def call(name: str) -> Any:
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")

    def arguments() -> list[Any]:
        made: list[Any] = []
        for argument in operator._schema.arguments:
            kind = str(argument.type)
            if argument.kwarg_only or kind.startswith("Optional"):
                continue
            if kind == "List[Tensor]":
                made.append(tensors())
            else:
                made.append(torch.empty((), device="cuda") if kind == "Tensor" else NUMBER[kind])
        return made

    return arguments, operator


@pytest.mark.parametrize("name", [name for name in EVERY if name.partition(".")[0].endswith("_")])
def test_in_place_nothing_is_taken(name: str, taken: Any) -> None:
    found = taken(*call(name))

    assert (found.kept, found.temporary) == ([], [])


@pytest.mark.parametrize(
    "name", [name for name in EVERY if not name.partition(".")[0].endswith("_") and name not in OTHERS]
)
def test_out_of_place_one_result_for_each_tensor_is_taken(name: str, taken: Any) -> None:
    found = taken(*call(name))

    assert [shape for shape, _ in found.kept] == [(5, 7), (100_000,), (3,)]
    assert found.temporary == []


def test_norms_first_take_one_for_each_chunk_of_65536_of_the_largest_tensor(taken: Any) -> None:
    found = taken(lambda: (tensors(),), torch._foreach_norm)

    assert found.temporary == [((3 * 2,), "float32")]
    assert found.kept == [((), "float32")] * 3


def test_norms_of_bf16_are_added_up_in_float32(taken: Any) -> None:
    found = taken(lambda: ([t.bfloat16() for t in tensors()],), torch._foreach_norm)

    assert found.temporary == [((3 * 2,), "float32")]
    assert found.kept == [((), "bfloat16")] * 3


def test_gradients_are_unscaled_in_place(taken: Any) -> None:
    def make() -> tuple[Any, ...]:
        return tensors(), torch.empty((), device="cuda"), torch.empty((), device="cuda")

    found = taken(make, torch._amp_foreach_non_finite_check_and_unscale_)

    assert (found.kept, found.temporary) == ([], [])


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_a_fused_step_takes_nothing_once_its_state_is_there(optimizer: str, taken: Any) -> None:
    if optimizer == "Adagrad" and not torch_releases.since(2, 13):
        pytest.skip("torch below 2.13 fuses Adagrad on the CPU only")

    def make() -> tuple[Any, ...]:
        parameters = [torch.nn.Parameter(t) for t in tensors()]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        arguments = {"momentum": 0.9} if optimizer == "SGD" else {}
        made = getattr(torch.optim, optimizer)(parameters, fused=True, lr=0.1, **arguments)
        made.step()
        return made, parameters

    found = taken(make, lambda made, _: made.step())

    assert (found.kept, found.temporary) == ([], [])

"""Element-wise operators give on paper what they give in earnest: shape, strides and dtype, whatever they are given.

On paper ATen's own functions are asked (planner/paper/native/structured.cpp); here the CPU runs the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

import planner.paper as paper  # before torch

import torch  # isort: skip
from torch import Tensor  # isort: skip
from torch.nn import functional  # isort: skip

FLOATS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.ones(4, 6, 8, 10),
    "half": lambda: torch.ones(4, 6, 8, 10, dtype=torch.bfloat16),
    "transposed": lambda: torch.ones(4, 10, 8, 6).transpose(1, 3),
    "channels last": lambda: torch.ones(4, 6, 8, 10).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.ones(1, 6, 1, 10).expand(4, 6, 8, 10),
    "every second": lambda: torch.ones(4, 6, 8, 20)[..., ::2],
}
NOTHING = {"nothing": lambda: torch.ones(4, 0, 8, 10)}
NUMBERS: dict[str, Callable[[], Tensor]] = {
    "whole": lambda: torch.ones(4, 6, 8, 10, dtype=torch.int64),
    "a row": lambda: torch.ones(10),
    "a column": lambda: torch.ones(8, 1),
    "one": lambda: torch.ones(()),
}
OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "exp": torch.exp,
    "cos": torch.cos,
    "sin": torch.sin,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "square": lambda x: x.pow(2),
    "root": lambda x: x.pow(0.5),
    "times a number": lambda x: x * 2.5,
    "plus a multiple": lambda x: torch.add(x, x, alpha=2),
    "mean": lambda x: x.mean(1),
    "mean, kept": lambda x: x.mean((0, -1), keepdim=True),
    "mean in another dtype": lambda x: x.mean(-1, dtype=torch.float64),
    "cat": lambda x: torch.cat((x, x), dim=-1),
    "stack": lambda x: torch.stack((x, x), dim=1),
}
OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}
IN_PLACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add_": lambda x, y: x.add_(y, alpha=2),
    "sub_": Tensor.sub_,
    "mul_": Tensor.mul_,
    "div_": Tensor.div_,
}
PRODUCTS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "mm": lambda: (torch.ones(4, 6), torch.ones(6, 8)),
    "mm, transposed": lambda: (torch.ones(6, 4).t(), torch.ones(8, 6, dtype=torch.float32).t()),
    "mm, half": lambda: (torch.ones(4, 6, dtype=torch.bfloat16), torch.ones(6, 8, dtype=torch.bfloat16)),
    "mm of nothing": lambda: (torch.ones(0, 6), torch.ones(6, 8)),
    "bmm": lambda: (torch.ones(3, 4, 6), torch.ones(3, 6, 8)),
    "bmm, transposed": lambda: (torch.ones(3, 6, 4).mT, torch.ones(8, 6, 3).transpose(0, 2)),
}


@pytest.fixture(autouse=True, scope="module")
def device() -> Iterator[torch.device]:
    with paper.gpu("sm_90") as gpu:
        yield gpu.device


@pytest.mark.parametrize(("operator", "given"), list(product(OF_ONE, {**FLOATS, **NOTHING})))
def test_of_one_tensor(operator: str, given: str, device: torch.device) -> None:
    there = {**FLOATS, **NOTHING}[given]()

    assert looks(OF_ONE[operator](on_paper(there, device))) == looks(OF_ONE[operator](there))


@pytest.mark.parametrize("operator", ["neg", "exp", "relu", "square", "times a number", "cat"])
def test_of_whole_numbers(operator: str, device: torch.device) -> None:
    there = NUMBERS["whole"]()

    assert looks(OF_ONE[operator](on_paper(there, device))) == looks(OF_ONE[operator](there))


@pytest.mark.parametrize(("operator", "given", "other"), list(product(OF_TWO, FLOATS, {**FLOATS, **NUMBERS})))
def test_of_two_tensors(operator: str, given: str, other: str, device: torch.device) -> None:
    first, second = FLOATS[given](), {**FLOATS, **NUMBERS}[other]()

    found = OF_TWO[operator](on_paper(first, device), on_paper(second, device))

    assert looks(found) == looks(OF_TWO[operator](first, second))


@pytest.mark.parametrize(("operator", "given", "other"), list(product(IN_PLACE, FLOATS, NUMBERS)))
def test_in_place(operator: str, given: str, other: str, device: torch.device) -> None:
    first, second = FLOATS[given](), NUMBERS[other]()

    found = outcome(IN_PLACE[operator], on_paper(first, device), on_paper(second, device))

    assert found == outcome(IN_PLACE[operator], first, second)


@pytest.mark.parametrize("given", FLOATS)
@pytest.mark.parametrize("out", ["plain", "half", "nothing"])
def test_into_a_tensor_that_is_there(given: str, out: str, device: torch.device) -> None:
    first, into = FLOATS[given](), {**FLOATS, "nothing": lambda: torch.ones(0)}[out]()
    there = on_paper(into, device)
    torch.mul(on_paper(first, device), 2.5, out=there)

    assert looks(there) == looks(torch.mul(first, 2.5, out=into))


def test_a_sum_into_a_tensor_that_is_there(device: torch.device) -> None:
    """Its operator has no kernel of CUDA in torch's list of operators, but parts of which torch makes one."""
    there = on_paper(FLOATS["plain"](), device)

    assert torch.add(there, there, out=there) is there


@pytest.mark.parametrize("given", PRODUCTS)
def test_products(given: str, device: torch.device) -> None:
    first, second = PRODUCTS[given]()

    assert looks(on_paper(first, device) @ on_paper(second, device)) == looks(first @ second)


@pytest.mark.parametrize("given", PRODUCTS)
def test_products_and_sums_with_them_into_what_is_there(given: str, device: torch.device) -> None:
    """As Inductor's code multiplies; a row that is added stands for all."""
    first, second = PRODUCTS[given]()
    product, add = {2: (torch.mm, torch.addmm), 3: (torch.bmm, torch.baddbmm)}[first.dim()]
    row = torch.ones(second.shape[-1], dtype=first.dtype)

    def run(first: Tensor, second: Tensor, row: Tensor, out: Tensor) -> list[Tensor]:
        return [product(first, second, out=out), add(row, first, second, beta=2, out=out), add(row, first, second)]

    there = first, second, row, first @ second
    found = run(*(on_paper(each, device) for each in there))

    assert [looks(each) for each in found] == [looks(each) for each in run(*there)]
    assert found[0] is found[1]


def test_sums_with_products_that_do_not_fit_are_refused(device: torch.device) -> None:
    matrix = torch.empty(4, 4, device=device)

    with pytest.raises(RuntimeError, match="must match the existing size"):
        torch.addmm(torch.empty(3, device=device), matrix, matrix)


def test_matrices_that_do_not_fit_are_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(4x6 and 4x6\)"):
        torch.empty(4, 6, device=device) @ torch.empty(4, 6, device=device)


@pytest.mark.parametrize("operator", OF_TWO)
def test_a_number_on_the_host_is_taken_by_value(operator: str, device: torch.device) -> None:
    there, number = FLOATS["half"](), torch.tensor(2.5)

    assert looks(OF_TWO[operator](on_paper(there, device), number)) == looks(OF_TWO[operator](there, number))


def test_tensors_of_several_dtypes_are_joined_in_the_widest(device: torch.device) -> None:
    there = [FLOATS["half"](), FLOATS["plain"]()]

    found = torch.cat([on_paper(each, device) for each in there])

    assert looks(found) == looks(torch.cat(there))


def test_shapes_that_do_not_broadcast_are_refused_in_the_words_of_cuda(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match the size of tensor b \(4\)"):
        torch.empty(3, device=device) + torch.empty(4, device=device)


def on_paper(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def outcome(operator: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> object:
    """How the result looks, and whether it is the first tensor; or that it is refused."""
    try:
        result = operator(first, second)
    except RuntimeError:
        return "refused"
    return looks(result), result is first


def looks(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype

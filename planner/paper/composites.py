"""Operators that torch makes of others in C++ and that read a value between two of them: what they would read.

No frame says in C++ who reads. Such an operator is entered by name, and then runs torch's own code. Sources, torch
2.13: aten/src/ATen/native/Correlation.cpp, SpectralOps.cpp, Itertools.cpp, TensorCompare.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from math import comb
from typing import Any

import torch

from planner.paper import blocks

Answer = bool | int


@dataclass(frozen=True, slots=True)
class Composite:
    """An operator (`cov`), what it reads by the operator that made the value (`aten.ge`), and how many values of a mask
    hold, from the operator's own arguments."""

    operator: str
    why: str
    answers: Mapping[str, Answer] = field(default_factory=dict)
    count: Callable[..., int] | None = None
    is_result: bool = False
    """What is read is the result: a program's reader answers that, as it does for what the program reads itself."""


def _count_combinations(values: torch.Tensor, r: int = 2, with_replacement: bool = False) -> int:
    return comb(values.numel() + r - 1, r) if with_replacement else comb(values.numel(), r)


_KNOWN = (
    Composite(
        "cov",
        "no weight is negative, their sum is not zero, and there are more observations than the correction",
        {"aten.ge": True, "aten.ne": True, "aten.le": False},
    ),
    Composite("istft", "windows overlap without gaps", {"aten.lt": False}),
    Composite("combinations", "as many as there are, whatever the values", count=_count_combinations),
    Composite("allclose", "a check of everything holds", {"aten.all": True}, is_result=True),
)


@dataclass(frozen=True, slots=True)
class _Entered:
    composite: Composite
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


_entered: ContextVar[_Entered | None] = ContextVar("entered", default=None)


def answer(tensor: torch.Tensor, *, of_a_program: bool) -> tuple[Answer, str] | None:
    """What the operator at work on this thread reads of the tensor, and why; None if none is or it is not known."""
    at_work = _entered.get()
    if at_work is None or (of_a_program and at_work.composite.is_result):
        return None
    found = at_work.composite.answers.get(blocks.operator_of(tensor))
    return None if found is None else (found, at_work.composite.why)


def count() -> int | None:
    """How many values of a mask hold that the operator at work on this thread has made; None if that is not known."""
    at_work = _entered.get()
    if at_work is None or at_work.composite.count is None:
        return None
    return at_work.composite.count(*at_work.arguments, **at_work.named)


@cache
def install() -> torch.library.Library:
    """Enter the operators of the table by name, once for the process."""
    own = torch.library.Library("aten", "IMPL")
    for composite in _KNOWN:
        operator = getattr(torch.ops.aten, composite.operator).default
        implicit = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        key = (
            torch._C.DispatchKey.CompositeImplicitAutograd
            if implicit
            else torch._C.DispatchKey.CompositeExplicitAutograd
        )
        # An implicit one is differentiated by what it calls: it is entered above autograd, and where there is none.
        for above in ("AutogradCUDA", "CUDA") if implicit else ("CUDA",):
            own.impl(composite.operator, _make_kernel(composite, operator, key), above)
    return own


def _make_kernel(composite: Composite, operator: Any, key: Any) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        before = _entered.set(_Entered(composite, arguments, named))
        try:
            return operator._op_dk(key, *arguments, **named)
        finally:
            _entered.reset(before)

    return run

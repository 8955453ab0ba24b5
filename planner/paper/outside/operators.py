"""Makes operators of other packages: what they allocate is told as theirs, and Dynamo leaves them whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from planner.errors import TraceError
from planner.paper import library

Tensor = torch.Tensor
Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def told_as(name: str) -> Iterator[None]:
    """What is allocated inside is this operator's (`flash_attn::fwd`) in every report."""
    native = library.load()
    before = native.paper_enter_kernel(native.paper_name_index(name.encode()))
    if before >= 0:
        native.paper_enter_kernel(before)  # inside another operator, which asked for it
    try:
        yield
    finally:
        native.paper_enter_kernel(before)


def told(name: str) -> Callable[[Function], Function]:
    """The decorated function allocates as this operator."""

    def wrap(function: Function) -> Function:
        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            with told_as(name):
                return function(*arguments, **named)

        return run  # type: ignore[return-value]

    return wrap


def operator(name: str, *, writes: Sequence[str] = ()) -> Callable[[Function], Any]:
    """The decorated function, which only allocates, is this custom operator of torch; `writes` names the arguments that
    it writes to. Its results without memory, which compiling asks for, are made by the same function."""

    def register(function: Function) -> Any:
        made = torch.library.custom_op(name, told(name)(function), mutates_args=tuple(writes), device_types="cuda")
        made.register_fake(function)
        return made

    return register


def refuse(what: str, reason: str, allowed: str) -> NoReturn:
    """Raises TraceError: what a package can do and its stand-in cannot."""
    raise TraceError(
        f"{what}: {reason}",
        allowed=allowed,
        remedy="describe its allocations in a file for --kernels (docs/run.md), or switch it off",
    )


def rounded(number: int, multiple: int) -> int:
    """The next multiple that is not smaller."""
    return -(-number // multiple) * multiple


def floats(like: Tensor, *shape: int) -> Tensor:
    """An accumulator in float32 on the device of another tensor."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)

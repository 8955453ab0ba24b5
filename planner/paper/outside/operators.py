"""Makes operators of other packages: what they allocate is recorded as theirs, and Dynamo leaves them whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from planner.errors import TraceError
from planner.paper import library

Tensor = torch.Tensor
Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def recorded_as(name: str) -> Iterator[None]:
    """What is allocated inside, or by a function that this decorates, is this operator's (`flash_attn::fwd`)."""
    native = library.load()
    before = native.paper_enter_kernel(native.paper_name_index(name.encode()))
    if before >= 0:
        native.paper_enter_kernel(before)  # inside another operator, which asked for it
    try:
        yield
    finally:
        native.paper_enter_kernel(before)


def operator(name: str, *, writes: tuple[str, ...] = ()) -> Callable[[Function], Any]:
    """The decorated function, which only allocates, is this custom operator of torch; `writes` names the arguments that
    it writes to. Its results without memory, which compiling asks for, are made by the same function."""

    def register(function: Function) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=writes)
        kernel = recorded_as(name)(function)
        custom = torch.library.custom_op(name, kernel, mutates_args=writes, device_types="cuda", schema=schema)
        custom.register_fake(function)
        return custom

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


def dense(tensor: Tensor) -> Tensor:
    """As a kernel of attention reads it: values of a head lie one after another."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

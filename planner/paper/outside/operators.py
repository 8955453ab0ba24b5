"""Makes operators of other packages: what they allocate is recorded as theirs, and Dynamo leaves them whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from planner.errors import TraceError
from planner.paper import library, work_records

Tensor = torch.Tensor
Function = TypeVar("Function", bound=Callable[..., Any])


Described = Callable[..., tuple[Sequence[Tensor], Sequence[int]]]


@contextmanager
def record_operator(name: str) -> Iterator[None]:
    """What is allocated inside is this operator's (`flash_attn::fwd`)."""
    native = library.load()
    before = native.paper_enter_kernel(native.paper_name_index(name.encode()))
    if before >= 0:
        native.paper_enter_kernel(before)  # inside another operator, which asked for it
    try:
        yield
    finally:
        native.paper_enter_kernel(before)


def kernel(name: str, describe: Described | None = None) -> Callable[[Function], Function]:
    """What the decorated function allocates is recorded as this operator's, and a call is a kernel of the step: of the
    tensors and numbers that `describe` says of its arguments, which are by default all but bytes (workspaces)."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with record_operator(name), work_records.part_of_a_launch():
                result = function(*arguments, **named)
            reads, numbers = (describe or _default_arguments)(*arguments, **named)
            work_records.note_kernel(name, reads, list(work_records.find_tensors(result)), scalars=numbers)
            return result

        return call  # type: ignore[return-value]

    return decorate


def _default_arguments(*arguments: Any, **named: Any) -> tuple[Sequence[Tensor], Sequence[int]]:
    values = (*arguments, *named.values())
    tensors = [tensor for tensor in work_records.find_tensors(*values) if tensor.dtype is not torch.uint8]
    return tensors, [int(value) for value in values if type(value) in (int, bool)]


def operator(name: str, *, writes: tuple[str, ...] = ()) -> Callable[[Function], Any]:
    """The decorated function, which only allocates, is this custom operator of torch; `writes` names the arguments that
    it writes to. Its results without memory, which compiling asks for, are made by the same function."""

    def register(function: Function) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=writes)
        recorded = kernel(name)(function)
        custom = torch.library.custom_op(name, recorded, mutates_args=writes, device_types="cuda", schema=schema)
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


def scratch(size_bytes: int) -> Tensor:
    """Bytes that a kernel asks for while it runs; free when the tensor goes."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def unknown_workspace(library_name: str, kernel_name: str, least_bytes: int) -> None:
    """The kernel has taken a workspace of its library (`cudnn`): it is named as not known, and so much is counted."""
    native = library.load()
    native.paper_workspace_is_unknown(kernel_name.encode())
    outer = native.paper_enter_kernel(native.paper_name_index(f"{library_name}::workspace".encode()))
    try:
        scratch(least_bytes)  # the library's, whichever operator asked
    finally:
        native.paper_enter_kernel(outer)


def dense(tensor: Tensor) -> Tensor:
    """As a kernel of attention reads it: values of a head lie one after another."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


TRITON_BUFFER_BYTES = 256 * 2**20
"""Of `triton.testing.do_bench` (Triton 3.9, backends/nvidia/driver.py, get_empty_cache_for_benchmark)."""


def benchmark(call: Callable[[], Any], buffer_bytes: int, operator: str) -> float:
    """Calls it, takes a buffer of this size, which empties the GPU's cache, as this operator's (`triton::do_bench`),
    and calls it beside that, as `triton.testing.do_bench` and Inductor's `benchmark_gpu` do (torch 2.13,
    torch/_inductor/runtime/benchmarking.py). All take the same time."""
    call()
    with record_operator(operator):
        buffer = torch.empty(buffer_bytes // 4, dtype=torch.int32, device="cuda")
    call()
    del buffer
    return 1.0

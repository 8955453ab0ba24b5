"""The table of kernels: which Python function stands for an operator on which target."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

from planner.paper import library
from planner.paper.targets import Target, target_of

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_cuda: dict[str, Callable[..., Any]] = {}
_cpu: dict[str, Callable[..., Any]] = {}
_libraries: dict[str, torch.library.Library] = {}
"""By the namespace of their operators; what they register stays as long as they do."""
_target: Target = target_of("sm_90")
_KEEPS_BOOK = frozenset({"_index_put_impl_"})
"""Kernels that say themselves what is known of the tensors that they write to; for all others that is nothing."""


def cuda(*operators: str) -> Callable[[Kernel], Kernel]:
    """The decorated function is the kernel of these operators on a GPU: `native_dropout`, `sum.dim_IntList`; with their
    namespace if it is another than aten."""
    return _register(_cuda, operators)


def cpu(*operators: str) -> Callable[[Kernel], Kernel]:
    """The decorated function is the kernel of these operators where the target is the CPU."""
    return _register(_cpu, operators)


def _register(table: dict[str, Callable[..., Any]], operators: tuple[str, ...]) -> Callable[[Kernel], Kernel]:
    def add(kernel: Kernel) -> Kernel:
        for operator in operators:
            table[operator] = kernel
        return kernel

    return add


def target() -> Target:
    """The target whose kernels are in force."""
    return _target


def choose(new: Target) -> None:
    global _target
    _target = new


def operators() -> list[str]:
    """Those of torch in the table."""
    return [operator for operator in {*_cuda, *_cpu} if "::" not in operator]


def install(only: Collection[str] = ()) -> None:
    """Register every kernel of the table with torch, or these alone, once for the process: of the operators that this
    torch has."""
    if _libraries:
        return
    for operator in sorted(filter(_exists, only or {*_cuda, *_cpu})):
        namespace, name = _named(operator)
        if namespace not in _libraries:
            _libraries[namespace] = torch.library.Library(namespace, "IMPL")
        _libraries[namespace].impl(name, _make_kernel(operator), "CUDA")


def _named(operator: str) -> tuple[str, str]:
    namespace, _, name = operator.rpartition("::")
    return namespace or "aten", name


def _operator(operator: str) -> Any:
    namespace, named = _named(operator)
    name, _, overload = named.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def _exists(operator: str) -> bool:
    try:
        return _operator(operator) is not None
    except AttributeError:
        return False


def _make_kernel(operator: str) -> Callable[..., Any]:
    on_gpu, on_cpu = _cuda.get(operator), _cpu.get(operator)
    written = [] if operator in _KEEPS_BOOK else _find_written_arguments(operator)
    native = library.load()
    name = native.paper_name_index("::".join(_named(operator)).partition(".")[0].encode())

    def run(*args: Any, **kwargs: Any) -> Any:
        kernel = on_cpu if _target.is_cpu and on_cpu is not None else on_gpu
        outer = native.paper_enter_kernel(name)
        if outer >= 0:
            native.paper_enter_kernel(outer)  # a kernel that calls another one: the outer one has asked
        for position in written:
            torch.ops.paper.forget_value(args[position])
        try:
            return like_meta(operator, *args, **kwargs) if kernel is None else kernel(*args, **kwargs)
        finally:
            native.paper_enter_kernel(outer)

    return run


def _find_written_arguments(operator: str) -> list[int]:
    """Positions of the tensors that the operator writes to."""
    schema = _operator(operator)._schema
    return [
        position
        for position, argument in enumerate(schema.arguments)
        if argument.is_write and not argument.kwarg_only and str(argument.type) == "Tensor"
    ]


def like_meta(operator: str, *args: Any, **kwargs: Any) -> Any:
    """Results of the operator as its meta kernel shapes them, born on the paper GPU."""
    call = _operator(operator)
    with torch._C.DisableTorchFunction():
        return torch.utils._pytree.tree_map(_to_paper, call(*torch.utils._pytree.tree_map(_to_meta, args), **kwargs))


def _to_meta(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_cuda:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return value


def _to_paper(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_meta:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return value


def scratch(size_bytes: int) -> Tensor:
    """Bytes that a kernel asks for while it runs; free when the tensor goes."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

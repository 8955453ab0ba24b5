"""Scratch memory that closed libraries take: as it was measured for the shape, or noted by name as unknown.

cuDNN is closed: what it asks for is not derived. A kernel whose workspace nobody measured says so, and the trace
carries the names, so that a plan can widen its interval. A workspace that is known by rule is taken with
`table.scratch` in its kernel's file.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planner.hardware.workspaces import WorkspaceRequest, WorkspaceTable
from planner.paper import library
from planner.units import show_bytes

_ANSWER = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64, ctypes.c_char_p,
)  # fmt: skip
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class AskedWorkspace:
    """A request as it was met. `position`: how much the recorder had written down. `taken`: what was allocated for it
    thereafter, so that a recording of a GPU can be read beside it; 0 for nothing."""

    position: int
    request: WorkspaceRequest
    taken: int


@dataclass(slots=True)
class _Asking:
    """What is known, and what was asked for while a trace is made."""

    table: WorkspaceTable
    position: Callable[[], int] | None = None
    asked: list[AskedWorkspace] = field(default_factory=list)
    met: set[WorkspaceRequest] = field(default_factory=set)
    answered: Counter[tuple[str, bool]] = field(default_factory=Counter)
    margin_bytes: int = 0

    def bytes_for(self, request: WorkspaceRequest, otherwise: int = 0) -> int | None:
        """The measured bytes of a request, of its first time if this is it; None where nothing was measured, and then
        `otherwise` will be taken."""
        found = self.table.answer(request)
        size = None
        if found is not None:
            size = found.bytes if request in self.met else found.first_bytes
            self.met.add(request)
            self.answered[request.kernel, found.interpolated] += 1
            self.margin_bytes = max(self.margin_bytes, found.margin_bytes)
        if self.position is not None:
            self.asked.append(AskedWorkspace(self.position(), request, otherwise if size is None else size))
        return size

    def described(self) -> tuple[str, ...]:
        """For people: which workspaces were counted, and on whose word."""
        if not self.answered:
            return ()
        kernels = sorted({kernel for kernel, _ in self.answered})
        interpolated = sorted({kernel for kernel, between in self.answered if between})
        said = f"Workspaces as measured ({self.table.provenance}): {'; '.join(kernels)}."
        if not interpolated:
            return (said,)
        return said, (
            f"Interpolated between two measured sizes, of which the larger took up to {show_bytes(self.margin_bytes)} "
            f"more: {'; '.join(interpolated)}."
        )


_asking: _Asking | None = None


@contextmanager
def known(table: WorkspaceTable | None, position: Callable[[], int] | None = None) -> Iterator[None]:
    """Inside, workspaces are taken as the table says. With `position` every request is kept (`asked`)."""
    global _asking
    native = library.load()
    _asking = _Asking(table or WorkspaceTable((), "", ""), position) if table or position else None
    answer = _ANSWER(_answer)  # referred to until the end: the native side keeps only its address
    if _asking is not None:
        native.paper_ask_for_workspaces(answer)
    try:
        yield
    finally:
        native.paper_ask_for_workspaces(_ANSWER())
        _asking = None


def asked() -> tuple[AskedWorkspace, ...]:
    """The requests so far, in order; nothing where they are not kept."""
    return tuple(_asking.asked) if _asking is not None else ()


def describe_counted() -> tuple[str, ...]:
    """Sentences on the measured workspaces that were counted."""
    return _asking.described() if _asking is not None else ()


def margin_bytes() -> int:
    """How much more an interpolated workspace may have taken, of the one where that is the most."""
    return _asking.margin_bytes if _asking is not None else 0


def take(owner: str, kernel: str, tensors: Sequence[Tensor], options: str = "", *, at_least: int = 0) -> Tensor | None:
    """The workspace of a kernel of the library `owner` (`cufft`), free when the tensor goes.

    Where nothing was measured the kernel is noted as unknown, and it takes no more than `at_least`.
    """
    size = _measured(kernel, tensors, options, at_least)
    if size is None:
        note_unknown_workspace(kernel)
        size = at_least
    if not size:
        return None
    native = library.load()
    outer = native.paper_enter_kernel(native.paper_name_index(f"{owner}::workspace".encode()))
    try:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    finally:
        native.paper_enter_kernel(outer)


def bytes_kept(kernel: str, tensors: Sequence[Tensor], options: str, otherwise: int) -> int:
    """Bytes that a forward keeps for its backward (a reserve), as measured; `otherwise` where nothing was."""
    size = _measured(kernel, tensors, options, otherwise)
    return otherwise if size is None else size


def _measured(kernel: str, tensors: Sequence[Tensor], options: str, otherwise: int) -> int | None:
    if _asking is None:
        return None
    shapes = tuple(tuple(each.shape) for each in tensors)
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    request = WorkspaceRequest(kernel=kernel, dtype=dtype, shapes=shapes, options=options)
    return _asking.bytes_for(request, otherwise)


def _answer(
    kernel: bytes, dtype: bytes, sizes: ctypes._Pointer[ctypes.c_int64], dims: ctypes._Pointer[ctypes.c_int64],
    tensors: int, options: bytes,
) -> int:  # fmt: skip
    assert _asking is not None
    shapes, place = [], 0
    for tensor in range(tensors):
        shapes.append(tuple(sizes[place : place + dims[tensor]]))
        place += dims[tensor]
    name = _SCALAR_TYPES.get(dtype.decode(), dtype.decode().lower())
    request = WorkspaceRequest(kernel=kernel.decode(), dtype=name, shapes=tuple(shapes), options=options.decode())
    size = _asking.bytes_for(request)
    return _UNKNOWN if size is None else size


_SCALAR_TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
"""torch's names of dtypes in C++ (c10/core/ScalarType.h) and in Python."""


def note_unknown_workspace(kernel: str) -> None:
    """This kernel has taken a workspace of a size that is not known; nothing is counted for it."""
    library.load().paper_workspace_is_unknown(kernel.encode())


def forget() -> None:
    """A trace begins."""
    library.load().paper_forget_unknown_workspaces()


def met() -> tuple[str, ...]:
    """The kernels of this trace whose workspaces are not counted, sorted."""
    names: bytes = library.load().paper_unknown_workspaces()
    return tuple(names.decode().splitlines())

"""Reading values from a device that has none: a table of call sites whose answer is known, and errors for the rest.

An answer never follows from a dtype alone. Reading something else is an error that names module and operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
from torch import Tensor

from planner.errors import TraceError
from planner.paper import library, native_records
from planner.runtime.own_code import is_programs

Value = float | int | bool

_KNOWN: tuple[tuple[str, str, Value, str], ...] = (
    ("transformers.masking_utils", "*", True, "nothing is padded, and no sequences are packed"),
    ("transformers.utils.import_utils", "torch_compilable_check", True,
     "the inputs of a healthy step pass the model's own checks"),
    ("torch.distributions.distribution", "__init__", True, "parameters are those of a distribution"),
    ("torch._tensor", "__format__", 0, "a number in the text of a message"),
    ("torch.optim._adafactor", "*", 1.0, "a norm: any finite number does"),
    ("deepspeed.runtime.zero.*", "complete_grad_norm_calculation_for_cpu_offload", 1.0,
     "a norm that is finite: how large it is decides about a factor only"),
    ("torch.distributed.algorithms.ddp_comm_hooks.*", "*", 1.0, "a norm that is not zero"),
)  # fmt: skip
"""Functions of libraries that read a value, by module and name; what they would read in a healthy step, and why."""

HEALTHY = "checks hold: values are finite, and what is drawn or computed equals no constant"

_UNSEEN = ("planner.paper", "planner.tracing.program", "torch.overrides", "torch.utils._device")
"""Whose frames stand between a program and what it reads."""

_MOVERS = ("torch.", "planner.")
"""Libraries that copy whole numbers to the host to move them; others read them there, but for single bytes."""

_READS = (
    "aten.to", "aten._to_copy", "aten.copy_", "aten.item", "aten._local_scalar_dense", "aten.is_nonzero",
    "aten.allclose", "aten.equal",
)  # fmt: skip
"""Operators that a program calls to read values."""

_PHASES = "the loss does not depend on the phases of eigenvectors, which are arbitrary"
_NODES: dict[str, tuple[Value, str]] = {
    "CumprodBackward0": (False, "no factor is zero"),
    "ProdBackward0": (0, "no factor is zero"),
    "ProdBackward1": (0, "no factor is zero"),
    "LinalgEigBackward0": (True, _PHASES),
    "LinalgEighBackward0": (True, _PHASES),
    "LinalgSvdBackward0": (True, _PHASES),
    "TraceBackward0": (1.0, "a gradient that becomes a matrix's diagonal: any number does"),
}
"""Autograd nodes whose backward reads a value in C++; what it would read in a healthy training step, and why."""

# Sources, torch 2.13: aten/src/ATen/native/Correlation.cpp, SpectralOps.cpp.
_OPERATORS: tuple[tuple[str, str, Value, str], ...] = (
    ("aten.cov", "aten.le", False, "there are more observations than the correction"),
    ("aten.istft", "aten.lt", False, "windows overlap without gaps"),
    ("aten.normal", "", True, "no deviation is negative"),
    ("aten._linalg_check_errors", "", False, "no matrix is singular, and decompositions converge"),
    ("aten.linalg_eig", "", True, "every number is finite"),
    ("aten._linalg_eigvals", "", True, "every number is finite"),
    ("aten.searchsorted", "", 0, "the places of the sorter lie within its rows"),
    ("aten.segment_reduce", "", True, "lengths lie within the data"),
)
"""Operators that read in C++ what they have made meanwhile, by which one (empty: any); what, in a healthy step, and
why."""

_MOST = "the most that there can be: how many there are depends on values"


class Reader:
    """Answers for a program what nobody knows, and hears what the tables answered. This one answers nothing."""

    def note(self, tensor: Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> None:
        """A table has answered a read from these frames, innermost first."""

    def answer(self, tensor: Tensor, frames: Sequence[FrameType]) -> Value | None:  # noqa: ARG002
        """What a read is answered that is in no table; None: it is refused."""
        return None

    def copy(self, tensor: Tensor, frames: Sequence[FrameType], mover: str) -> bool:  # noqa: ARG002
        """Several floats, or whatever the module `mover` moves, are zeros on the host; False: that is refused."""
        return bool(mover)

    def assume(self, why: str, frames: Sequence[FrameType]) -> bool:  # noqa: ARG002
        """Values are taken to be distributed as `why` says; False: they are not known."""
        return False

    def count(self, tensor: Tensor, frames: Sequence[FrameType], most: int, what: str, why: str) -> int | None:  # noqa: ARG002
        """How many there are (`what`: places selected, distinct values, bins), where a size follows from it: at most so
        many, and `why`; None: it is refused."""
        return None


_reader = Reader()


@contextmanager
def read_by(reader: Reader) -> Iterator[None]:
    """Inside, `reader` answers what the tables do not."""
    global _reader
    before, _reader = _reader, reader
    try:
        yield
    finally:
        _reader = before


def read(tensor: Tensor) -> Value:
    """The answer of a table or of the program's reader; TraceError names who reads if there is none."""
    frames = _frames(inspect.currentframe())
    answer = _find_answer(tensor, frames)
    if answer is None:
        raise _make_unanswered_error(frames, f"a value of {_describe_tensor(tensor)}")
    return answer


def copy_to_host(host: Tensor, device: Tensor) -> None:
    """Several floats are zeros on the host by now; single values and whole numbers are read by somebody, unless a
    library only moves them."""
    frames = _frames(inspect.currentframe())
    mover = _library(frames)
    is_number = host.is_floating_point() or host.is_complex()
    if host.numel() == 1 or not is_number:
        if (answer := _find_answer(device, frames)) is not None:
            host.fill_(answer)
            return
        if not is_number and host.element_size() > 1 and not mover.startswith(_MOVERS):
            mover = ""
        _write_zeros(host)
    if not _reader.copy(device, frames, mover):
        raise _make_unanswered_error(frames, f"the values of {_describe_tensor(device)}")


def _find_answer(tensor: Tensor, frames: Sequence[FrameType]) -> Value | None:
    known = _known_answer(tensor, frames)
    if known is None and (answer := _reader.answer(tensor, frames)) is not None:
        return answer
    known = known or _presume_check(tensor, frames)
    return None if known is None else _note(tensor, frames, *known)


def _presume_check(tensor: Tensor, frames: Sequence[FrameType]) -> tuple[Value, str] | None:
    """What a healthy step has where a library checks it: what a program asks for itself is its reader's to say."""
    presumed = torch.ops.paper.presumed(tensor)
    is_place = bool(torch.ops.paper.places(tensor))
    if presumed is None or is_place or not _library(frames):
        return None
    return presumed, HEALTHY


def _known_answer(tensor: Tensor, frames: Sequence[FrameType]) -> tuple[Value, str] | None:
    """What a table says of the nearest call site, of the operator or the autograd node at work, and why."""
    for frame in frames:
        for module, function, answer, why in _KNOWN:
            if _runs(frame, module, function):
                return answer, why
    return _answer_of_operator(tensor) or _NODES.get(node_name())


def _answer_of_operator(tensor: Tensor) -> tuple[Value, str] | None:
    at_work = native_records.operators_at_work()
    for operator, made_by, answer, why in _OPERATORS:
        if operator in at_work and made_by in ("", native_records.operator_of(tensor)):
            return answer, why
    return None


def known_truth(tensor: Tensor) -> bool | None:
    """What a check in C++ compares with true (`at::is_scalar_tensor_true`), where the operator at work is known."""
    known = _answer_of_operator(tensor)
    return None if known is None else bool(_note(tensor, _frames(inspect.currentframe()), *known))


def _note(tensor: Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> Value:
    _reader.note(tensor, frames, answer, why)
    return answer


def _write_zeros(host: Tensor) -> None:
    """Large memory of its own takes no page for them."""
    storage = host.untyped_storage()
    if host.nbytes == storage.nbytes():
        library.load().paper_write_zeros(storage._cdata)
    else:
        host.zero_()


def count_nonzero(operator: str, tensor: Tensor) -> int:
    """How many values are not zero, where the autograd node or the operator at work is in a table; else as `count`."""
    if (known := _NODES.get(node_name())) is not None:
        return int(_note(tensor, _frames(inspect.currentframe()), *known))
    if (selected := _selected.get()) is not None:
        return selected
    if (among := torch.ops.paper.places(tensor)) > 1 and tensor.dtype is torch.bool:
        each = -(-tensor.numel() // among)
        return count(operator, tensor, each, "places selected", f"each value is one of {among:,}, evenly")
    return count(operator, tensor, tensor.numel(), "places selected")


_selected: ContextVar[int | None] = ContextVar("selected", default=None)


@contextmanager
def selecting(count: int) -> Iterator[None]:
    """Inside, a mask that nobody knows selects so many."""
    before = _selected.set(count)
    try:
        yield
    finally:
        _selected.reset(before)


def count(operator: str, tensor: Tensor, most: int, what: str, why: str = _MOST) -> int:
    """How large a result is whose size depends on values, of a program as its reader says: at most `most`.

    Raises TraceError where nobody knows.
    """
    answer = _reader.count(tensor, _frames(inspect.currentframe()), most, what, why)
    if answer is None:
        refuse_size(operator, tensor)
    return answer


def may_assume(why: str) -> bool:
    """Whether the reader of a program lets values be drawn that nobody has."""
    return _reader.assume(why, _frames(inspect.currentframe()))


def node_name() -> str:
    """The autograd node whose backward this thread runs; empty outside a backward."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def refuse_size(operator: str, tensor: Tensor, remedy: str = "") -> NoReturn:
    """TraceError for an operator whose result is as large as the values of the tensor say."""
    what = f"the size of a result of {operator}, which depends on the values of {_describe_tensor(tensor)}"
    raise _make_unanswered_error(_frames(inspect.currentframe()), what, remedy)


def _frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        if not _module(frame).startswith(_UNSEEN):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _runs(frame: FrameType, module: str, function: str) -> bool:
    """Whether it is a frame of this function; `*` stands for any, also at the end of a module's name."""
    if function not in ("*", frame.f_code.co_name):
        return False
    running = _module(frame)
    return running.startswith(module[:-1]) if module.endswith("*") else running == module


def _library(frames: Sequence[FrameType]) -> str:
    """The module of a library, or the operator of torch, that reads or copies here on its own account; empty for a
    program."""
    if not frames:
        return ""
    if not is_programs(frames[0].f_code) or _module(frames[0]).startswith("planner."):
        return _module(frames[0])
    return next((name for name in native_records.operators_at_work()[:1] if name not in _READS), "")


def _describe_tensor(tensor: Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} and dtype {str(tensor.dtype).removeprefix('torch.')}"


def _make_unanswered_error(frames: list[FrameType], what: str, remedy: str = "") -> TraceError:
    reader = next((frame for frame in frames if not _module(frame).startswith("torch")), None)
    if reader is None:
        where = f"in {node_name() or 'torch itself'}"
    else:
        where = f"at {Path(reader.f_code.co_filename).name}:{reader.f_lineno} in {reader.f_code.co_qualname}"
    owners = (frame.f_locals.get("self") for frame in frames)
    owner = next((type(owner).__name__ for owner in owners if isinstance(owner, torch.nn.Module)), "")
    module = f" (module {owner})" if owner else ""
    return TraceError(
        f"the program reads {what} {where}{module}: planner does not compute values",
        allowed="control flow that does not depend on values of device tensors",
        remedy=remedy or "keep such decisions on the host, or plan this model with a variant that does not take them",
    )


def equal_shares(items: int, parts: int) -> Tensor:
    """How many each part gets if all get the same: together they are the items."""
    return torch.arange(parts + 1).mul_(items).div_(parts, rounding_mode="floor").diff()


def known_value(tensor: Tensor) -> Tensor | None:
    """Its values on the host, if they are known: a view of them, which may be written to."""
    if not tensor.is_cuda:
        return tensor
    found: Tensor | None = torch.ops.paper.known_value(tensor)
    return found

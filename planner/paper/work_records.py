"""What the paper GPU would compute: Python's own notes between the launches, and the work of one iteration."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from planner.events import Mark, Phase
from planner.paper import library
from planner.paper.native_records import dtype_name, dtype_number
from planner.paper.repetition import Again, Copy, Place
from planner.step_work import MESSAGES, Kernel, Launch, LaunchKind, StepWork

_FIRST_LANE = 1 << 20
"""Streams of communicators are numbered from here on."""
_MOST_SHAPES = 3
_OF_ITS_INPUT = ("reduce_scatter", "_reduce_scatter", "alltoall", "all_to_all", "scatter")
"""Collectives whose message is what a rank gives; of all others what it has in the end."""
_TRAINS = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
# Operators that only look at their tensors, besides views.
_COMPUTES_NOTHING = frozenset({
    "_efficientzerotensor", "_fused_sdp_choice", "_local_scalar_dense", "_reshape_alias", "alias", "as_strided",
    "detach", "empty", "empty_like", "empty_strided", "is_set_to", "new_empty", "record_stream", "resize_", "set_",
    "unfold", "view",
})  # fmt: skip


def expect_kernels(operators: Sequence[str]) -> None:
    """Those of these operators of torch (`mm`, `sum.dim_IntList`) that launch something are noted from now on."""
    native = library.load()
    for name in sorted({operator.partition(".")[0] for operator in operators} - _COMPUTES_NOTHING):
        native.paper_expect_kernel(f"aten::{name}".encode())


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """Those on the device, in lists too."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from tensors_in(*value)
        elif isinstance(value, torch.Tensor) and value.is_cuda:
            yield value


def note_kernel(
    op: str, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], *, read_bytes: int | None = None,
    written_bytes: int | None = None, scalars: Sequence[int] = (),
) -> None:  # fmt: skip
    """A kernel that no operator of torch is; without sizes it reads and writes all of its tensors."""
    first = next(iter((*reads, *writes)), None)
    shapes = [tuple(tensor.shape) for tensor in (*reads[:_MOST_SHAPES], *writes[:1])]
    read = sum(tensor.nbytes for tensor in reads) if read_bytes is None else read_bytes
    written = sum(tensor.nbytes for tensor in writes) if written_bytes is None else written_bytes
    _launch(op, -1 if first is None else dtype_number(first.dtype), read, written, shapes, scalars)


def _launch(
    op: str, dtype: int, read: int, written: int, shapes: Sequence[tuple[int, ...]], scalars: Sequence[int],
    lane: int = -1,
) -> None:  # fmt: skip
    native = library.load()
    sizes = [number for shape in shapes for number in (len(shape), *shape)]
    row = [native.paper_name_index(op.encode()), dtype, read, written, len(shapes), *sizes, len(scalars), *scalars]
    native.paper_launch((ctypes.c_int64 * len(row))(*row), len(row), lane)


@contextmanager
def part_of_a_launch() -> Iterator[None]:
    """Inside, operators are parts of something that is noted by itself."""
    native = library.load()
    native.paper_enter_launch()
    try:
        yield
    finally:
        native.paper_leave_launch()


@contextmanager
def collective_launched(
    name: str, ranks: Sequence[int], arguments: Sequence[Any], *, is_asynchronous: bool
) -> Iterator[Callable[[], None]]:
    """A collective of a group of ranks (`allreduce`, as torch's process groups call it) with its arguments; inside, its
    operators are part of it. It runs on the stream of its communicator after what is on the current stream, which waits
    for it at once, or if it `is_asynchronous` where what is given is called."""
    given = 1 if name.startswith(_OF_ITS_INPUT) else 0
    message = list(tensors_in(*arguments[given : given + 1]))
    if not message:
        yield lambda: None
        return
    native = library.load()
    size, stride = len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 0
    current, lane = native.paper_current_stream(), _FIRST_LANE + size * 4096 + stride % 4096
    ready, done = native.paper_new_event(), native.paper_new_event()
    native.paper_note_launch(LaunchKind.RECORD, current, ready)
    native.paper_note_launch(LaunchKind.WAIT, lane, ready)
    read = sum(tensor.nbytes for tensor in message)
    peer = arguments[1:2] if name in MESSAGES else ()
    _launch(f"nccl::{name}", dtype_number(message[0].dtype), read, 0, (), (size, stride, *peer), lane)
    native.paper_note_launch(LaunchKind.RECORD, lane, done)

    def wait() -> None:
        native.paper_note_launch(LaunchKind.WAIT, native.paper_current_stream(), done)

    with part_of_a_launch():
        yield wait
    if not is_asynchronous:
        wait()


class Places:
    """What the recorder wrote down between launches: marks, places, and what was folded away there."""

    def __init__(self) -> None:
        self._events: list[object] = []

    def note(self) -> int:
        """Here is one; its number, for `fill`."""
        self._events.append(None)
        library.load().paper_note_launch(LaunchKind.PLACE, 0, len(self._events) - 1)
        return len(self._events) - 1

    def fill(self, number: int, event: object) -> None:
        self._events[number] = event

    def work(self, marks: Mapping[int, Mark], until: int) -> StepWork:
        """The work of the last whole iteration before the position `until`; empty where there is none. What was folded
        away is written out. `marks`: by position, those that were made in hindsight."""
        out: list[tuple[int, ...]] = []
        at: dict[int, int] = {}
        found: list[tuple[int, Mark]] = []
        positions = sorted(marks)
        for kind, stream, what, position in _read_launches():
            while positions and positions[0] <= position:
                found.append((len(out), marks[positions.pop(0)]))
            if position > until:
                break
            if kind != LaunchKind.PLACE:
                out.append((kind, stream, what))
                continue
            match event := self._events[what]:
                case Place():
                    at[event.number] = len(out)
                case Again() | Copy():
                    out += out[at[event.first] : at[event.after]] * (event.times if isinstance(event, Again) else 1)
                case Mark():
                    found.append((len(out), event))
                    if event.phase is Phase.OPTIMIZER_STEP:  # DDP's reducer waits in C++ for what it has issued
                        out.append((LaunchKind.WAIT_ALL, 0, 0))
        stretches = _last_iteration(found, len(out), recurs=bool(marks))
        used: dict[int, int] = {}
        launches = tuple(
            Launch(kind, stream, used.setdefault(what, len(used)) if kind == LaunchKind.KERNEL else what)
            for begin, end in stretches
            for kind, stream, what in out[begin:end]
        )
        kernels = _read_kernels()
        return StepWork(tuple(kernels[number] for number in used), launches)


def _last_iteration(marks: Sequence[tuple[int, Mark]], end: int, *, recurs: bool) -> list[tuple[int, int]]:
    """Of the last iteration that another one follows, or the last one: from its first training phase to the end of its
    last, whatever lies between. `recurs`: and a forward without gradients that follows every iteration, as that of a
    frozen encoder, the shortest of them (another may be beside an evaluation)."""
    first: dict[int, int] = {}
    for place, (_, mark) in enumerate(marks):
        if mark.phase in _TRAINS and mark.iteration > 0:
            first.setdefault(mark.iteration, place)
    if not first:
        return []
    numbers = sorted(first)
    indices = [*(index for index, _ in marks), end]
    training: dict[int, tuple[int, int]] = {}
    between: dict[int, tuple[int, int]] = {}
    for number in numbers:
        begin = first[number]
        after = next((at for at in range(begin, len(marks)) if marks[at][1].iteration > number), len(marks))
        ended = 1 + max(at for at in range(begin, after) if marks[at][1].phase in _TRAINS)
        training[number] = indices[begin], indices[ended]
        if any(mark.phase is Phase.EVAL for _, mark in marks[ended:after]):
            between[number] = indices[ended], indices[after]
    chosen = numbers[-2] if len(numbers) > 2 else numbers[-1]
    if not recurs or len(numbers) < 3 or not between.keys() >= set(numbers[:-1]):
        return [training[chosen]]
    return [training[chosen], min((between[number] for number in numbers[1:-1]), key=lambda each: each[1] - each[0])]


def _read_launches() -> list[tuple[int, ...]]:
    native = library.load()
    record = struct.Struct(native.paper_launch_format().decode())
    count = native.paper_launch_count()
    return list(record.iter_unpack(ctypes.string_at(native.paper_launches(), count * record.size))) if count else []


def _read_kernels() -> list[Kernel]:
    native = library.load()
    length = native.paper_kernel_table_length()
    table = (ctypes.c_int64 * length).from_address(native.paper_kernel_table())[:] if length else []
    kernels: list[Kernel] = []
    start = 0
    while start < length:
        row = table[start + 1 : start + 1 + table[start]]
        name, dtype, read, written, count, *rest = row
        shapes = []
        for _ in range(count):
            dims = rest[0]
            shapes.append(tuple(rest[1 : 1 + dims]))
            rest = rest[1 + dims :]
        scalars = tuple(rest[1:])
        op = native.paper_name(name).decode()
        kernels.append(Kernel(op, dtype_name(dtype), read, written, tuple(shapes), scalars))
        start += 1 + table[start]
    return kernels

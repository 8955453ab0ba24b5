"""What the paper GPU would compute: launches and kernels as they were written down, and the work of one iteration."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from planner.events import Mark, Phase
from planner.paper import library
from planner.paper.native_records import LeftOut, blocks_of, dtype_name, dtype_number
from planner.step_work import MESSAGES, Kernel, Launch, LaunchKind, RepeatedLaunches, StepWork

_LAUNCH = struct.Struct("=iiqq")
"""`Launch` in native/launches.h."""
_FIRST_LANE = 1 << 20
"""Streams of communicators are numbered from here on."""
_MOST_SHAPES = 3
_AGAIN = -1
"""In the place of a launch: so many before it happen again, so many times."""
# Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.4, 2.6 and 2.7.
_STASHED_IF_SYNCHRONOUS = (
    "broadcast", "_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single", "scatter",
)  # fmt: skip
"""Of these nothing is marked where the caller waits at once."""
_HOLD_INPUTS = ("allgather_into_tensor_coalesced", "all_gather_single_coalesced")
"""Of these what they fill is never marked."""
_SENDS_INPUT = ("reduce_scatter", "_reduce_scatter", "alltoall", "all_to_all", "scatter")
"""Collectives whose message is what a rank gives; of all others what it has in the end."""
NAMES_AN_EVENT = frozenset({
    LaunchKind.RECORD, LaunchKind.WAIT, LaunchKind.HOST_WAIT_EVENT, LaunchKind.ISSUE, LaunchKind.KEEP,
    LaunchKind.RELEASE,
})  # fmt: skip
"""`what` is the number of an event of the GPU."""
_WITHOUT_TIME = (LaunchKind.ISSUE, LaunchKind.KEEP, LaunchKind.RELEASE, LaunchKind.COMPILE)
"""What holds memory back, and takes no time; compilation, which most iterations do not have."""
_TRAINS = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)


class Holding(Enum):
    """What a process group does so that the memory of a collective is not used for something else meanwhile."""

    NOTHING = "nothing"
    """One that is over when it returns."""
    USES = "uses"
    """NCCL's up to torch 2.7: it marks it as used on its stream (`recordStream`)."""
    KEEPS = "keeps"
    """NCCL's since torch 2.8 (TensorShelf): it keeps its tensors until it is waited for, or a watchdog has seen its
    end. A collective that is waited for at once runs on the current stream."""


def find_tensors(*values: Any) -> Iterator[torch.Tensor]:
    """Those on the device, in lists too."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from find_tensors(*value)
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


@dataclass(frozen=True, slots=True)
class Issued:
    """A collective."""

    stream: int
    end: int
    """The event with which it ends."""
    holding: Holding

    def wait(self) -> None:
        """The current stream waits for it, and what it keeps is released."""
        native = library.load()
        native.paper_note_launch(LaunchKind.WAIT, native.paper_current_stream(), self.end)
        native.paper_release(self.end)

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """It takes part in deciding when their memory is free."""
        native = library.load()
        for block in dict.fromkeys(block for tensor in tensors for block in blocks_of(tensor)):
            if self.holding is Holding.KEEPS:
                native.paper_keep(block, self.end)
            elif self.holding is Holding.USES:
                native.paper_use(block, self.stream)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A process group, as its collectives are launched."""

    number: int
    size: int
    stride: int
    """Between its first two ranks; 0 if it has one."""

    @classmethod
    def of(cls, number: int, ranks: Sequence[int]) -> RankGroup:
        """That of these ranks, ascending."""
        return cls(number, len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 0)


@contextmanager
def collective_launched(
    name: str, group: RankGroup, arguments: Sequence[Any], *, is_asynchronous: bool, holding: Holding
) -> Iterator[Issued | None]:
    """A collective of a group of ranks (`allreduce`, as torch's process groups call it) with its arguments; inside, its
    operators are part of it. It runs after what is on the current stream, which waits for it at once, or if it
    `is_asynchronous` where it is waited for. None where nothing of the device takes part."""
    given = 1 if name.startswith(_SENDS_INPUT) else 0
    message = list(find_tensors(*arguments[given : given + 1]))
    if not message:
        yield None
        return
    native = library.load()
    current, done = native.paper_current_stream(), native.paper_new_event()
    here = holding is Holding.KEEPS and not is_asynchronous
    stream = current if here else _FIRST_LANE + group.size * 4096 + group.stride % 4096
    native.paper_note_launch(LaunchKind.ISSUE, group.number, done)
    if stream != current:
        ready = native.paper_new_event()
        native.paper_note_launch(LaunchKind.RECORD, current, ready)
        native.paper_note_launch(LaunchKind.WAIT, stream, ready)
    read = sum(tensor.nbytes for tensor in message)
    peer = arguments[1:2] if name in MESSAGES else ()
    _launch(f"nccl::{name}", dtype_number(message[0].dtype), read, 0, (), (group.size, group.stride, *peer), stream)
    native.paper_note_launch(LaunchKind.RECORD, stream, done)
    issued = Issued(stream, done, _holding_of(name, holding, is_asynchronous=is_asynchronous))
    held = arguments[1:] if name in _HOLD_INPUTS and holding is Holding.USES else arguments
    issued.hold(find_tensors(*held))
    with part_of_a_launch():
        yield issued
    if stream != current and not is_asynchronous:
        issued.wait()


def _holding_of(name: str, holding: Holding, *, is_asynchronous: bool) -> Holding:
    """Of one collective of such a group."""
    if holding is not Holding.USES:
        return holding if is_asynchronous else Holding.NOTHING
    if name in _STASHED_IF_SYNCHRONOUS and not is_asynchronous:
        return Holding.NOTHING
    avoids = os.environ.get("TORCH_NCCL_AVOID_RECORD_STREAMS", "").lower() in ("1", "y", "yes", "t", "true")
    return Holding.NOTHING if avoids and name not in MESSAGES else Holding.USES


def number_events(launches: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """The GPU's events in the order in which they are named: the process counts them for as long as it lives."""
    numbers: dict[int, int] = {}
    for kind, _, what, *_ in launches:
        if kind in NAMES_AN_EVENT:
            numbers.setdefault(what, len(numbers))
    return numbers


def work_of_iteration(
    marks: Mapping[int, Mark], until: int, left_out: Sequence[LeftOut], *, names_all: bool, recurs: bool
) -> StepWork:
    """The work of the last whole iteration before the position `until`; empty where there is none. `marks` are those
    of phases, by position. With `names_all` every kernel that was launched at any time is
    named, and keeps its number. `recurs`: see `_last_iteration`."""
    out: list[tuple[int, ...]] = []
    found: list[tuple[int, Mark]] = []
    repeated = {stretches.middle: stretches for stretches in left_out}
    begun: dict[int, int] = {}
    positions = sorted({*marks, *repeated, *(stretches.first for stretches in left_out)})

    def begin(mark: Mark) -> None:
        found.append((len(out), mark))
        if mark.phase is Phase.OPTIMIZER_STEP:  # DDP's reducer waits in C++ for what it has issued
            out.append((LaunchKind.WAIT_ALL, 0, 0))

    def reach(position: int) -> None:
        begun[position] = len(out)
        if (stretches := repeated.get(position)) is not None and begun[stretches.first] < len(out):
            out.append((_AGAIN, len(out) - begun[stretches.first], stretches.times))
        if position in marks:
            begin(marks[position])

    for kind, stream, what, position in read_launches():
        while positions and positions[0] <= position:
            reach(positions.pop(0))
        if position > until:
            break
        if kind not in _WITHOUT_TIME:
            out.append((kind, stream, what))
    stretches = _last_iteration(found, len(out), recurs=recurs)
    kernels, _ = read_kernels()
    used = {number: number for number in range(len(kernels))} if names_all else dict[int, int]()
    rows, repeats = _fold([row for begin, end in stretches for row in out[begin:end]])
    events = number_events(rows)
    launches = tuple(
        Launch(kind, stream, used.setdefault(what, len(used)) if kind == LaunchKind.KERNEL else events.get(what, what))
        for kind, stream, what in rows
    )
    return StepWork(tuple(kernels[number] for number in used), launches, tuple(repeats))


def _fold(rows: Iterable[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[RepeatedLaunches]]:
    """The launches, and what of them repeats; repetition of what has repetition in it is written out."""
    launches: list[tuple[int, ...]] = []
    repeats: list[RepeatedLaunches] = []
    starts: list[tuple[int, int]] = []
    for row in rows:
        starts.append((len(launches), len(repeats)))
        if row[0] != _AGAIN:
            launches.append(row)
            continue
        _, length, times = row
        (first, inner), after = starts[-1 - length], len(launches)
        if not (inside := repeats[inner:]):
            repeats.append(RepeatedLaunches(first, after, times))
            continue
        for _ in range(times):
            moved = len(launches) - first
            repeats += [RepeatedLaunches(each.first + moved, each.after + moved, each.times) for each in inside]
            launches += launches[first:after]
    return launches, repeats


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


def read_launches(since: int = 0) -> list[tuple[int, ...]]:
    """Those after the first so many: kind, stream, what, and how many records of memory there were."""
    native = library.load()
    count = native.paper_launch_count() - since
    begin = native.paper_launches() + since * _LAUNCH.size if count > 0 else 0
    return list(_LAUNCH.iter_unpack(ctypes.string_at(begin, count * _LAUNCH.size))) if count > 0 else []


def read_kernels(since: int = 0) -> tuple[list[Kernel], int]:
    """Those that joined the table after it was so long, as launches number them; and how long it is."""
    native = library.load()
    end = native.paper_kernel_table_length()
    begin = native.paper_kernel_table() + since * ctypes.sizeof(ctypes.c_int64) if end > since else 0
    table = (ctypes.c_int64 * (end - since)).from_address(begin)[:] if end > since else []
    kernels: list[Kernel] = []
    start = 0
    while start < len(table):
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
    return kernels, end

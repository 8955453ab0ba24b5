"""What the GPU of a rank does in one iteration: kernels in the order of their launch, and who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

_MOST_CHARACTERS = 10_000
WHOLE_DEVICE = -1
"""In the place of a stream."""


MESSAGES = ("send", "recv", "recv_anysource")
"""Collectives that are none: one rank sends to one other."""


class LaunchKind(IntEnum):
    """As planner/paper/native/launches.h numbers them."""

    KERNEL = 0
    """`what` is the number of a kernel."""
    RECORD = 1
    """An event, by its number, on a stream."""
    WAIT = 2
    """The stream waits for an event."""
    WAIT_ALL = 3
    """The stream waits for all that was launched before."""
    HOST_WAIT = 4
    """The host waits for the stream."""
    HOST_WAIT_EVENT = 6
    """The host waits for an event."""
    COMPILE = 7
    """The host compiles."""
    ISSUE = 8
    """A collective begins whose end is the event `what`; in the place of a stream, its group."""
    KEEP = 9
    """That collective keeps a block, which is in the place of a stream; among events it is a `Keep`."""
    RELEASE = 10
    """The work of that collective is waited for: it frees what it keeps."""


class Launch(NamedTuple):
    """Something that the host puts on a stream, or waits for. Among events of memory it stands where it happened."""

    kind: int
    stream: int
    what: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is computed, or sent. Shapes and scalars are there where they decide how long it takes."""

    op: str
    """`aten::mm`, `inductor::triton_poi_fused_add_0`, `nccl::allreduce`."""
    dtype: str
    """Of its first tensor."""
    read_bytes: int
    written_bytes: int
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of up to three tensors that it takes, and of the first that it returns."""
    scalars: tuple[int, ...] = ()
    """Integers and truth values among its arguments, in their order; of a collective the ranks of its group and by how
    much their numbers differ, and of a message between two the other one."""


class RepeatedLaunches(NamedTuple):
    """The launches from `first` to before `after` happen `times` more times after `after`."""

    first: int
    after: int
    times: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """Of one iteration."""

    kernels: tuple[Kernel, ...] = ()
    launches: tuple[Launch, ...] = ()
    repeats: tuple[RepeatedLaunches, ...] = ()
    """In order, without overlaps."""

    def count_kernels(self) -> Counter[int]:
        """How often each kernel is launched, by its number."""
        counts = _count_kernels(self.launches)
        for first, after, times in self.repeats:
            for number, count in _count_kernels(self.launches[first:after]).items():
                counts[number] += times * count
        return counts


NO_WORK = StepWork()


def _count_kernels(launches: Iterable[Launch]) -> Counter[int]:
    return Counter(what for kind, _, what in launches if kind == LaunchKind.KERNEL)


def kernel_row(kernel: Kernel) -> list[Any]:
    """As plain lists, numbers and texts."""
    return [kernel.op, kernel.dtype, kernel.read_bytes, kernel.written_bytes, kernel.shapes, kernel.scalars]


def read_work(
    kernel_rows: Iterable[Sequence[Any]], launch_rows: Iterable[Sequence[Any]], repeats: Iterable[Sequence[Any]] = ()
) -> StepWork:
    """The work of these rows. Raises ValueError or TypeError for rows that nobody writes."""
    kernels = tuple(_read_kernel(*row) for row in kernel_rows)
    launches = tuple(Launch(*_numbers(row)) for row in launch_rows)
    if any(launch.kind == LaunchKind.KERNEL and not 0 <= launch.what < len(kernels) for launch in launches):
        raise ValueError("a kernel that is launched is not there")
    repeated = tuple(RepeatedLaunches(*_numbers(row)) for row in repeats)
    if any(repeat.times < 1 for repeat in repeated):
        raise ValueError("launches that repeat less than once")
    return StepWork(kernels, launches, repeated)


def _read_kernel(op: Any, dtype: Any, read_bytes: Any, written_bytes: Any, shapes: Any, scalars: Any) -> Kernel:
    if any(type(text) is not str or len(text) > _MOST_CHARACTERS for text in (op, dtype)):
        raise ValueError("no name of a kernel")
    read_bytes, written_bytes = _numbers((read_bytes, written_bytes))
    return Kernel(op, dtype, read_bytes, written_bytes, tuple(map(_numbers, shapes)), _numbers(scalars))


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    if any(type(value) is not int for value in values):
        raise ValueError("no number")
    return tuple(values)

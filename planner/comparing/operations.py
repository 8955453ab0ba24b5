"""Allocation by allocation: which sizes one side has more of, and from which operators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from planner.comparing.comparison import Figure, SizeComparison
from planner.events import Alloc, Event

_HOST_SCALARS_BYTES = 8
"""Numbers that a CPU wraps into tensors, and a GPU takes by value."""


def compare_sizes(predicted: Sequence[Event], measured: Sequence[Event]) -> tuple[Figure, tuple[SizeComparison, ...]]:
    """How many allocations there are, and the sizes whose counts differ, the most bytes first."""
    here, there = _sizes(predicted), _sizes(measured)
    counts = {size: sum(here[size].values()) - sum(there[size].values()) for size in here.keys() | there.keys()}
    differing = tuple(
        SizeComparison(bytes=size, count=count, ops=_ops(here[size] if count > 0 else there[size]))
        for size, count in sorted(counts.items(), key=lambda each: (-abs(each[0] * each[1]), each[0]))
        if count
    )
    whole = Figure(name="allocations", predicted=_number(here), measured=_number(there))
    return whole, differing


def first_difference(predicted: Sequence[Event], measured: Sequence[Event]) -> tuple[int, Alloc | None, Alloc | None]:
    """Where the orders of sizes part: the position, and what either side asks for there; -1 if they never do."""
    here, there = _in_order(predicted), _in_order(measured)
    for position, (one, other) in enumerate(zip(here, there, strict=False)):
        if one.requested_bytes != other.requested_bytes:
            return position, one, other
    shorter = min(len(here), len(there))
    if len(here) == len(there):
        return -1, None, None
    return shorter, _at(here, shorter), _at(there, shorter)


def _at(allocations: Sequence[Alloc], position: int) -> Alloc | None:
    return allocations[position] if position < len(allocations) else None


def _in_order(events: Sequence[Event]) -> list[Alloc]:
    return [e for e in events if isinstance(e, Alloc) and e.requested_bytes > _HOST_SCALARS_BYTES]


def _sizes(events: Sequence[Event]) -> defaultdict[int, Counter[str]]:
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in _in_order(events):
        found[event.requested_bytes][event.origin.op if event.origin else ""] += 1
    return found


def _number(sizes: defaultdict[int, Counter[str]]) -> int:
    return sum(sum(ops.values()) for ops in sizes.values())


def _ops(ops: Counter[str]) -> tuple[str, ...]:
    return tuple(op for op, _ in ops.most_common(4) if op)

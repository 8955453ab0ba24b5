"""Replays what one rank does on the host: the highest point of every phase.

Pinned memory is as torch's CachingHostAllocator takes it: rounded, never split, and kept when it is given up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from planner.errors import AllocatorConfError
from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.units import MIB

# torch 2.13, ATen/core/CachingHostAllocator.h: `allocate` rounds a request up to a power of two and looks for a free
# block of that size alone (`get_free_block`); `maybe_cache_block` keeps what is freed. A block is taken again once the
# copies out of it have passed, which is taken to be so by the next request.
_ROUND, _CACHE = "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"
_RESERVE = "pinned_reserve_segment_size_mb"
_OPTION = re.compile(rf"({_ROUND}|{_CACHE}|{_RESERVE}):([^,]*)")
_UNLIMITED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class PinnedRules:
    """Settings of the allocator; the defaults are torch's (c10/core/AllocatorConfig.h): no limits."""

    largest_rounded_bytes: int = _UNLIMITED
    """`pinned_max_round_threshold_mb`: what is larger is taken as it is."""
    largest_kept_bytes: int = _UNLIMITED
    """`pinned_max_cached_size_mb`: what is larger is given back when it is freed, and not rounded."""
    reserved_bytes: int = 0
    """`pinned_reserve_segment_size_mb`: a segment that is taken at first use; what is asked for comes out of it."""

    @classmethod
    def from_conf(cls, conf: str) -> PinnedRules:
        """What `PYTORCH_ALLOC_CONF` says of pinned memory. Raises AllocatorConfError for what is not a number."""
        options = {name: _megabytes(name, value) for name, value in _OPTION.findall("".join(conf.split()))}
        return cls(options.get(_ROUND, _UNLIMITED), options.get(_CACHE, _UNLIMITED), options.get(_RESERVE, 0))

    def block_bytes(self, requested_bytes: int) -> int:
        """What a request takes: `size <= threshold && size <= cached` rounds up (`allocate`)."""
        if requested_bytes <= 0:
            return 0
        if requested_bytes <= min(self.largest_rounded_bytes, self.largest_kept_bytes):
            return 1 << (requested_bytes - 1).bit_length()
        return requested_bytes


class PinnedMemory:
    """The pinned memory of one process: what is in use, and what is taken from the system for it."""

    def __init__(self, rules: PinnedRules) -> None:
        self._rules = rules
        self._free: Counter[int] = Counter()
        self.taken_bytes = 0
        self.used_bytes = 0

    def take(self, requested_bytes: int, count: int = 1) -> int:
        """The bytes of each of so many blocks: those that were given up, and then new ones."""
        size = self._rules.block_bytes(requested_bytes)
        again = min(self._free[size], count)
        self._free[size] -= again
        self.taken_bytes += size * (count - again)
        self.used_bytes += size * count
        return size

    def give_up(self, block_bytes: int, count: int = 1) -> None:
        """The blocks are free; only what is too large to be kept goes back to the system."""
        self.used_bytes -= block_bytes * count
        if block_bytes > self._rules.largest_kept_bytes:
            self.taken_bytes -= block_bytes * count
        else:
            self._free[block_bytes] += count

    @property
    def held_bytes(self) -> int:
        """What the process holds: what was taken, and at least the reserved segment once anything was."""
        return max(self.taken_bytes, self._rules.reserved_bytes) if self.taken_bytes else 0


def _megabytes(option: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise AllocatorConfError(
            f"{option}: {value[:40]!r} is not a whole number",
            allowed="megabytes, such as 64",
            place="PYTORCH_ALLOC_CONF",
        )
    return int(value) * MIB


Moment = tuple[Phase, int]
HostTimeline = dict[Moment, Counter[HostCategory]]
"""The bytes that a rank holds at the highest point of each phase of each iteration."""


def replay_host(events: Iterable[HostEvent], rules: PinnedRules) -> HostTimeline:
    """What a rank holds at least in each phase."""
    rank = _Rank(rules)
    for event in events:
        match event:
            case Mark(phase, iteration):
                rank.enter(phase, iteration)
            case HostAlloc(number):
                rank.take(number, event)
            case HostFree(number):
                rank.give_up(number)
    return rank.highest


class _Rank:
    def __init__(self, rules: PinnedRules) -> None:
        self._pinned = PinnedMemory(rules)
        self._held: Counter[HostCategory] = Counter()
        self._alive: dict[int, tuple[HostAlloc, int]] = {}
        """With the bytes of each block as they are taken."""
        self.highest: HostTimeline = {}
        self.enter(Phase.LOAD, 0)  # whatever is marked later, a process begins with it

    def enter(self, phase: Phase, iteration: int) -> None:
        self._moment = phase, iteration
        self._look()

    def take(self, key: int, block: HostAlloc) -> None:
        size = self._pinned.take(block.bytes, block.count) if block.pinned else block.bytes
        self._alive[key] = block, size
        self._held[block.category] += size * block.count
        self._look()

    def give_up(self, key: int) -> None:
        block, size = self._alive.pop(key)
        self._held[block.category] -= size * block.count
        if block.pinned:
            self._pinned.give_up(size, block.count)

    def _look(self) -> None:
        """Whether this is the highest point so far of a phase, which may be marked more than once; of equals the moment
        at which more of it is in use."""
        self._held[HostCategory.PINNED_CACHE] = kept = self._pinned.held_bytes - self._pinned.used_bytes
        before = self.highest.get(self._moment)
        if before is None or (self._held.total(), -kept) > (before.total(), -before[HostCategory.PINNED_CACHE]):
            self.highest[self._moment] = +self._held


def condense(events: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """The events without blocks that never count: the highest points of all phases are the same.

    Between two events of other kinds (a phase, pinned memory) only plain blocks come and go. What is taken and given up
    between them is left out, but for what is there when such blocks are at their highest.
    """
    stretch: list[HostAlloc | HostFree] = []
    plain: dict[int, int] = {}
    for event in events:
        if isinstance(event, HostAlloc) and not event.pinned:
            plain[event.block] = event.bytes
            stretch.append(event)
        elif isinstance(event, HostFree) and event.block in plain:
            stretch.append(event)
        else:
            yield from _condense_stretch(stretch, plain)
            stretch.clear()
            yield event
    yield from _condense_stretch(stretch, plain)


def _condense_stretch(stretch: Sequence[HostAlloc | HostFree], sizes: Mapping[int, int]) -> Iterator[HostEvent]:
    steps = (sizes[event.block] if isinstance(event, HostAlloc) else -sizes[event.block] for event in stretch)
    heights = list(accumulate(steps, initial=0))
    at = heights.index(max(heights))
    for part in (stretch[:at], stretch[at:]):
        born = {event.block for event in part if isinstance(event, HostAlloc)}
        passing = {event.block for event in part if isinstance(event, HostFree) and event.block in born}
        yield from (event for event in part if event.block not in passing)

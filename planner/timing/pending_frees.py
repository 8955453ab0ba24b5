"""When the GPU has passed what holds memory back: blocks that other streams use, and that NCCL's groups keep.

What the caching allocator and ProcessGroupNCCL ask the GPU, a clock answers here. A block that another stream uses is
free at the first request of memory after that stream has passed what it had been given when the block was given up
(`process_events` in CUDACachingAllocator.cpp). What the group of a collective keeps is given up where its work is
waited for, or, after a watchdog has seen its end, where the group's next collective is issued (TensorShelf in
ProcessGroupNCCL.cpp, torch 2.8 to 2.13). The watchdog looks at intervals that have nothing to do with iterations, so of
many iterations one is met at every moment: a peak is what was kept where the look came last. What happens in the first
iteration happens once, and is met in the middle.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from planner.events import (
    Alloc,
    EmptyCache,
    Event,
    Free,
    FreeCompleted,
    Keep,
    Mark,
    Phase,
    Repeat,
    Use,
)
from planner.repeat_writer import Boundary, RepeatWriter
from planner.step_work import Launch, LaunchKind
from planner.timing.gpu_clock import GpuClock, Prices

WATCHDOG_NS = 100_000_000
"""Between two looks of NCCL's watchdog (kWatchdogThreadSleepMillis in ProcessGroupNCCL.cpp): the latest that it sees an
end."""
_OF_COLLECTIVES = (int(LaunchKind.ISSUE), int(LaunchKind.RELEASE))
_OPTIMIZER_WAITS = Launch(LaunchKind.WAIT_ALL, 0, 0)
"""DDP's reducer waits in C++ for what it has issued, which nobody hears."""


@dataclass(frozen=True, slots=True)
class ToldEvents:
    """What an allocator is told, and what of it repeats."""

    events: tuple[Event, ...]
    repeats: tuple[Repeat, ...]
    hangs_on_time: bool = False
    """Whether memory was requested while anything that was given up waited for the GPU."""
    longest_lead_ns: int = 0
    """How far the host was ahead of it at most meanwhile."""


def complete_frees(events: Sequence[Event], repeats: Sequence[Repeat], prices: Prices) -> ToldEvents:
    """The events that an allocator is told where kernels take this long: without launches, every `FreeCompleted` at its
    time. Stretches that repeat are written out until the host is as far ahead of the GPU as once before."""
    writer = _TimedWriter(prices, events)
    writer.write(events, repeats)
    frees = writer.frees
    return ToldEvents(tuple(writer.events), tuple(writer.repeats), frees.hangs_on_time, frees.longest_lead_ns)


@dataclass(eq=False, slots=True)
class _Collective:
    """One that may keep blocks."""

    seen: int = 0
    """When the watchdog sees its end."""
    blocks: list[int] = field(default_factory=list)


class PendingFrees:
    """What was given up and is not free, because the GPU has not passed it."""

    def __init__(self, prices: Prices) -> None:
        self.clock = GpuClock(prices)
        self._streams: dict[int, int] = {}
        """Of each block that is alive."""
        self._uses: defaultdict[int, set[int]] = defaultdict(set)
        """Other streams that use a block."""
        self._passing: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
        """By stream: when it passes its uses of blocks that were given up, in order."""
        self._unpassed: dict[int, int] = {}
        """By block that was given up: how many streams have to pass."""
        self._keepers: Counter[int] = Counter()
        """By block: how many collectives keep it."""
        self._collectives: dict[int, _Collective] = {}
        """By the event that is its end; the latest of those with one number."""
        self._issued: defaultdict[int, list[_Collective]] = defaultdict(list)
        """By group: its collectives that may keep something."""
        self._sees_after = WATCHDOG_NS
        self._given_up: set[int] = set()
        """Blocks that the program has given up and a collective keeps."""
        self.hangs_on_time = False
        self.longest_lead_ns = 0

    def take(self, events: Iterable[Event], told: list[Event]) -> None:
        """Lets further events happen, and appends what the allocator sees of them."""
        for event in events:
            kind = type(event)  # of a long trace every event is asked: exact types are the fastest question
            if kind is Launch:
                if event.kind in _OF_COLLECTIVES:  # type: ignore[union-attr]
                    self._take_collective(event, told)  # type: ignore[arg-type]
                else:
                    self.clock.take(event)  # type: ignore[arg-type]
                continue
            if kind is Alloc:
                self._process_events(told)
                self._streams[event.block] = event.stream  # type: ignore[union-attr]
            elif kind is Free:
                if self._keepers.get(event.block):  # type: ignore[union-attr]
                    self._given_up.add(event.block)  # type: ignore[union-attr]
                    continue
                self._free(event.block)  # type: ignore[union-attr]
            elif isinstance(event, Use):
                if event.stream != self._streams.get(event.block):
                    self._uses[event.block].add(event.stream)
            elif isinstance(event, Keep):
                collective = self._collectives[event.collective]
                collective.seen = self.clock.events.get(event.collective, 0) + self._sees_after
                collective.blocks.append(event.block)
                self._keepers[event.block] += 1
                continue
            elif isinstance(event, EmptyCache):
                self.clock.wait_until(max((queue[-1][0] for queue in self._passing.values() if queue), default=0))
                self._process_events(told)
            elif isinstance(event, Mark):
                self._sees_after = WATCHDOG_NS if event.iteration > 1 else WATCHDOG_NS // 2
                if event.phase is Phase.OPTIMIZER_STEP:
                    self.clock.take(_OPTIMIZER_WAITS)
            told.append(event)

    def pending(self) -> list[int]:
        """The blocks that are given up and not free, in an order that a repetition repeats."""
        passing = (block for _, queue in sorted(self._passing.items()) for _, block in queue)
        kept = (block for collective in self._keeping() for block in collective.blocks if block in self._given_up)
        return list(dict.fromkeys((*passing, *kept)))

    def state(self) -> tuple[object, ...]:
        """All that decides when what follows passes, but for the names of blocks."""
        now, numbers = self.clock.host, {block: number for number, block in enumerate(self.pending())}
        passing = tuple(
            (stream, tuple((max(at - now, 0), numbers[block]) for at, block in queue))
            for stream, queue in sorted(self._passing.items())
            if queue
        )
        kept = tuple((each.seen - now, tuple(map(numbers.get, each.blocks))) for each in self._keeping())
        return self.clock.lead(), passing, kept

    def _keeping(self) -> Iterator[_Collective]:
        return (collective for _, issued in sorted(self._issued.items()) for collective in issued if collective.blocks)

    def _take_collective(self, launch: Launch, told: list[Event]) -> None:
        """One is issued, or waited for."""
        if launch.kind == LaunchKind.RELEASE:
            if (waited := self._collectives.get(launch.what)) is not None:
                self._let_go(waited, told)
            return
        issued = self._issued[launch.stream]
        for collective in issued:
            if collective.seen < self.clock.host:
                self._let_go(collective, told)
        self._collectives[launch.what] = _Collective()
        self._issued[launch.stream] = [
            *(collective for collective in issued if collective.blocks),
            self._collectives[launch.what],
        ]

    def _let_go(self, collective: _Collective, told: list[Event]) -> None:
        for block in collective.blocks:
            self._keepers[block] -= 1
            if not self._keepers[block] and block in self._given_up:
                self._given_up.remove(block)
                self._free(block)
                told.append(Free(block))
        collective.blocks.clear()

    def _free(self, block: int) -> None:
        """insert_events: of each stream that uses the block the moment at which it has ended what it was given."""
        self._streams.pop(block, None)
        self._keepers.pop(block, None)
        streams = self._uses.pop(block, ())
        for stream in streams:
            self._passing[stream].append((max(self.clock.streams[stream], self.clock.host), block))
        if streams:
            self._unpassed[block] = len(streams)

    def _process_events(self, told: list[Event]) -> None:
        """process_events: whatever the streams have passed by now is free."""
        if not self._unpassed and not self._given_up:
            return
        self.hangs_on_time = True
        self.longest_lead_ns = max(self.longest_lead_ns, self.clock.end() - self.clock.host)
        for queue in self._passing.values():
            while queue and queue[0][0] <= self.clock.host:
                _, block = queue.popleft()
                self._unpassed[block] -= 1
                if not self._unpassed[block]:
                    del self._unpassed[block]
                    told.append(FreeCompleted(block))


class _TimedWriter(RepeatWriter):
    """Writes down what the allocator is told as the clock goes."""

    def __init__(self, prices: Prices, events: Sequence[Event]) -> None:
        super().__init__(events)
        self.frees = PendingFrees(prices)

    def take(self, events: Iterable[Event]) -> None:
        """Lets further events happen."""
        self.frees.take(events, self.events)

    def look(self, heirs: tuple[int, ...]) -> Boundary:
        """How far the host is ahead, and what is pending, which is passed on with the heirs."""
        return Boundary(self.frees.state(), (*heirs, *self.frees.pending()))

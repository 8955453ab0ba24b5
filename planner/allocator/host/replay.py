"""Replays what one rank and its data loaders do on the host: the highest point of every phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.allocator.host import processes
from planner.allocator.host.processes import Fact, PinnedMemory, PinnedRules
from planner.events import Mark, Phase
from planner.host_events import (
    Backing,
    BatchTaken,
    HostAlloc,
    HostBlock,
    HostCategory,
    HostEvent,
    HostFree,
    LoaderEnded,
    LoaderStarted,
)
from planner.job.schema import DataLoader


# torch 2.13, utils/data/dataloader.py: `num_workers * prefetch_factor` batches are asked for ahead
# (`_MultiProcessingDataLoaderIter.__init__`, `_reset`), and the loop has one more. A worker puts them together in
# shared memory (utils/data/_utils/collate.py); with `pin_memory` a thread of the rank copies each into pinned memory
# and lets go of the other (_utils/pin_memory.py).
def loader_blocks(loader: DataLoader, tensors: Iterable[int]) -> Iterator[HostBlock]:
    """What one loader holds once it is read: `tensors` are the bytes of each tensor of a batch."""
    sizes = [size for size in tensors if size]
    if not loader.workers:
        return _batches(sizes, 1, pinned=loader.pin_memory, name="in use")
    ahead = loader.workers * loader.prefetch_factor + 1
    worker_bytes = processes.WORKER.best_bytes + loader.worker_bytes
    return _worker_blocks(sizes, ahead, loader.workers, worker_bytes, pins=loader.pin_memory)


def _worker_blocks(
    sizes: Sequence[int], ahead: int, workers: int, worker_bytes: int, *, pins: bool
) -> Iterator[HostBlock]:
    yield from _batches(sizes, ahead, pinned=pins, name="read ahead")
    if pins:
        yield from _batches(sizes, 1, pinned=False, name="being pinned")
    held = worker_bytes + sum(sizes)
    yield HostBlock(bytes=held, category=HostCategory.WORKER, name="data loader", count=workers)


def _batches(sizes: Iterable[int], count: int, *, pinned: bool, name: str) -> Iterator[HostBlock]:
    for size in sizes:
        yield HostBlock(bytes=size, category=HostCategory.BATCH, pinned=pinned, name=name, count=count)


def _worker_margins(workers: int, fact: Fact, batch: int) -> tuple[int, int]:
    """How many bytes fewer, and more, the workers may take than is counted.

    What a worker keeps of the samples that it put together is for the C library to say (glibc 2.39, malloc: memory of
    freed blocks below 32 MiB may stay): none, one batch, or, measured at worst, four.
    """
    fewer, more = fact.best_bytes - fact.low_bytes + batch, fact.high_bytes - fact.best_bytes + 3 * batch
    return workers * fewer, workers * more


@dataclass(frozen=True, slots=True)
class HostPhase:
    """A rank's memory at the highest point of one phase, in bytes.

    `own` is by category what the rank has for itself, its data loader's workers included; `node` and `files` are by
    name what it shares with the other ranks of its node.
    """

    phase: Phase
    iteration: int
    own: Mapping[HostCategory, int]
    node: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """What cannot be given back: own and shared, without files."""
        return sum(self.own.values()) + sum(self.node.values())


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """All phases of one rank, and how far its workers may be from what is counted: fewer and more bytes."""

    phases: tuple[HostPhase, ...]
    worker_margins: tuple[int, int] = (0, 0)


def replay_host(
    events: Iterable[HostEvent], *, base: Sequence[HostBlock], loader: DataLoader, rules: PinnedRules
) -> RankTimeline:
    """What a rank holds in each phase, beside `base`, which it has from the beginning.

    `loader` is that of batches that are taken (`BatchTaken`), whose settings a job says; others are events. It begins
    to read ahead with the first batch that is taken from it; an evaluation has a loader of its own, which ends with it.
    """
    rank = _Rank(loader, rules)
    rank.enter(Phase.LOAD, 0)  # whatever is marked later, a process begins with it
    for block in base:
        rank.hold(block)
    for event in events:
        match event:
            case Mark(phase, iteration):
                rank.enter(phase, iteration)
            case HostAlloc(number, held):
                rank.alive[number] = (held, rank.hold(held))
            case HostFree(number):
                rank.give_up(rank.alive.pop(number))
            case BatchTaken(tensors):
                rank.take_batch(tensors)
            case LoaderStarted():
                rank.start_loader(event)
            case LoaderEnded(number):
                for taken in rank.started.pop(number)[1]:
                    rank.give_up(taken)
    return RankTimeline(rank.finished(), rank.margins)


class _Rank:
    def __init__(self, loader: DataLoader, rules: PinnedRules) -> None:
        self._loader = loader
        self._pinned = PinnedMemory(rules)
        self._own: Counter[HostCategory] = Counter()
        self._shared: dict[Backing, Counter[str]] = {Backing.NODE: Counter(), Backing.FILE: Counter()}
        self.alive: dict[int, tuple[HostBlock, int]] = {}
        self._loading: dict[bool, list[tuple[HostBlock, int]]] = {}
        self.started: dict[int, tuple[tuple[int, int], list[tuple[HostBlock, int]]]] = {}
        self._now: HostPhase | None = None
        self._phases: dict[tuple[Phase, int], HostPhase] = {}
        self.margins = (0, 0)

    def enter(self, phase: Phase, iteration: int) -> None:
        if phase is not Phase.EVAL:
            for taken in self._loading.pop(True, ()):
                self.give_up(taken)
        self._close()
        self._now = self._snapshot(phase, iteration)

    def hold(self, held: HostBlock) -> int:
        """The bytes of each of the blocks, as they are taken."""
        size = held.bytes
        if held.backing is not Backing.OWN:
            self._shared[held.backing][held.name] += held.bytes * held.count
        else:
            if held.pinned:
                size = self._pinned.take(held.bytes, held.count)
            self._own[held.category] += size * held.count
        if self._now is not None and self._height() > _height_of(self._now):
            self._now = self._snapshot(self._now.phase, self._now.iteration)
        return size

    def take_batch(self, tensors: Sequence[int]) -> None:
        evaluates = self._now is not None and self._now.phase is Phase.EVAL
        if evaluates in self._loading:
            return
        self._loading[evaluates] = [(block, self.hold(block)) for block in loader_blocks(self._loader, tensors)]
        if not evaluates:
            self.margins = _worker_margins(self._loader.workers, processes.WORKER, sum(tensors))

    def start_loader(self, started: LoaderStarted) -> None:
        """What a program's loader holds besides the batch in hand: what is read ahead, and the workers."""
        sizes = [size for size in started.tensors if size]
        # A worker that is not a fork has read its libraries itself.
        fact = processes.TORCH if started.spawned else processes.WORKER
        blocks = _worker_blocks(sizes, started.ahead, started.workers, fact.best_bytes, pins=started.pin_memory)
        margins = _worker_margins(started.workers, fact, sum(sizes))
        self.started[started.loader] = margins, [(block, self.hold(block)) for block in blocks]
        fewer, more = (sum(side) for side in zip(*(margins for margins, _ in self.started.values()), strict=True))
        self.margins = max(self.margins[0], fewer), max(self.margins[1], more)

    def finished(self) -> tuple[HostPhase, ...]:
        self._close()
        return tuple(self._phases.values())

    def give_up(self, given: tuple[HostBlock, int]) -> None:
        held, size = given
        if held.backing is not Backing.OWN:
            self._shared[held.backing][held.name] -= held.bytes * held.count
            return
        self._own[held.category] -= size * held.count
        if held.pinned:
            self._pinned.give_up(size, held.count)

    def _height(self) -> tuple[int, int, int]:
        """As `_height_of` has it."""
        kept = self._pinned.held_bytes - self._pinned.used_bytes
        used = self._own.total() + self._shared[Backing.NODE].total()
        return used + kept, used, self._shared[Backing.FILE].total()

    def _snapshot(self, phase: Phase, iteration: int) -> HostPhase:
        own = {category: count for category, count in self._own.items() if count}
        if kept := self._pinned.held_bytes - self._pinned.used_bytes:
            own[HostCategory.PINNED_CACHE] = kept
        node, files = ({name: count for name, count in shared.items() if count} for shared in self._shared.values())
        return HostPhase(phase, iteration, own, node, files)

    def _close(self) -> None:
        """A phase of several micro-batches is marked more than once: its highest point counts."""
        if self._now is None:
            return
        key = (self._now.phase, self._now.iteration)
        before = self._phases.get(key)
        if before is None or _height_of(self._now) > _height_of(before):
            self._phases[key] = self._now


def _height_of(phase: HostPhase) -> tuple[int, int, int]:
    """What is held; of equals the moment at which more of it is in use, and then more of files is mapped."""
    kept = phase.own.get(HostCategory.PINNED_CACHE, 0)
    return phase.held_bytes, phase.held_bytes - kept, sum(phase.files.values())


def condense(events: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """The events without blocks that never count: the highest points of all phases are the same.

    Between two events of other kinds (a phase, a loader, pinned or shared memory) only plain blocks come and go. What
    is taken and given up between them is left out, but for what is there when such blocks are at their highest.
    """
    stretch: list[HostAlloc | HostFree] = []
    plain: dict[int, int] = {}
    for event in events:
        if isinstance(event, HostAlloc) and _is_plain(event.held):
            plain[event.block] = event.held.bytes * event.held.count
            stretch.append(event)
        elif isinstance(event, HostFree) and event.block in plain:
            stretch.append(event)
        else:
            yield from _condense_stretch(stretch, plain)
            stretch.clear()
            yield event
    yield from _condense_stretch(stretch, plain)


def _is_plain(held: HostBlock) -> bool:
    return not held.pinned and held.backing is Backing.OWN


def _condense_stretch(stretch: Sequence[HostAlloc | HostFree], sizes: Mapping[int, int]) -> Iterator[HostEvent]:
    born: dict[int, int] = {}
    passing: dict[int, tuple[int, int]] = {}
    now = highest = 0
    at = -1
    for place, event in enumerate(stretch):
        if isinstance(event, HostAlloc):
            born[event.block] = place
            now += sizes[event.block]
        else:
            now -= sizes[event.block]
            if event.block in born:
                passing[event.block] = born[event.block], place
        if now > highest:
            highest, at = now, place
    left_out = {block for block, (first, after) in passing.items() if not first <= at < after}
    return (event for event in stretch if event.block not in left_out)

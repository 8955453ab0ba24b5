"""Replays what one rank does on the host: the highest point of every phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.events import Mark, Phase
from planner.host.loaders import loader_blocks, loader_margins, started_blocks, started_margins
from planner.host.pinned import PinnedMemory, PinnedRules
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
    def own_bytes(self) -> int:
        return sum(self.own.values())

    @property
    def held_bytes(self) -> int:
        """What cannot be given back: own and shared, without files."""
        return self.own_bytes + sum(self.node.values())


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
    for each in base:
        rank.hold(each)
    for event in events:
        match event:
            case Mark(phase, iteration):
                rank.enter(phase, iteration)
            case HostAlloc(block, held):
                rank.allocate(block, held)
            case HostFree(block):
                rank.free(block)
            case BatchTaken(tensors):
                rank.take_batch(tensors)
            case LoaderStarted():
                rank.start_loader(event)
            case LoaderEnded(number):
                rank.end_loader(number)
    return RankTimeline(rank.finished(), rank.margins)


class _Rank:
    def __init__(self, loader: DataLoader, rules: PinnedRules) -> None:
        self._loader = loader
        self._pinned = PinnedMemory(rules)
        self._own: Counter[HostCategory] = Counter()
        self._shared: dict[Backing, Counter[str]] = {Backing.NODE: Counter(), Backing.FILE: Counter()}
        self._alive: dict[int, tuple[HostBlock, int]] = {}
        self._loading: dict[bool, list[tuple[HostBlock, int]]] = {}
        self._started: dict[int, tuple[LoaderStarted, list[tuple[HostBlock, int]]]] = {}
        self._now: HostPhase | None = None
        self._phases: dict[tuple[Phase, int], HostPhase] = {}
        self.margins = (0, 0)

    def enter(self, phase: Phase, iteration: int) -> None:
        if phase is not Phase.EVAL:
            for each in self._loading.pop(True, ()):
                self._give_up(each)
        self._close()
        self._now = self._snapshot(phase, iteration)

    def allocate(self, block: int, held: HostBlock) -> None:
        self._alive[block] = (held, self.hold(held))

    def free(self, block: int) -> None:
        self._give_up(self._alive.pop(block))

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
        self._loading[evaluates] = [(each, self.hold(each)) for each in loader_blocks(self._loader, tensors)]
        if not evaluates:
            self.margins = loader_margins(self._loader, tensors)

    def start_loader(self, started: LoaderStarted) -> None:
        self._started[started.loader] = started, [(each, self.hold(each)) for each in started_blocks(started)]
        margins = [started_margins(each) for each, _ in self._started.values()]
        fewer, more = sum(each[0] for each in margins), sum(each[1] for each in margins)
        self.margins = max(self.margins[0], fewer), max(self.margins[1], more)

    def end_loader(self, loader: int) -> None:
        for each in self._started.pop(loader)[1]:
            self._give_up(each)

    def finished(self) -> tuple[HostPhase, ...]:
        self._close()
        return tuple(self._phases.values())

    def _give_up(self, given: tuple[HostBlock, int]) -> None:
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
        node, files = ({name: count for name, count in self._shared[each].items() if count} for each in self._shared)
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

"""What a rank class holds, from its events and replays: the life of each block, the peak taken apart, each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.allocator.timeline import Timeline
from planner.events import Alloc, Category, Event, Free, Mark, Origin, Phase, Role
from planner.job.kinds import ANY, Kind
from planner.report.statement import Holder, OutsideAllocator, Peak, PhaseStatement, RankClassStatement
from planner.verdict import decide

NO_ORIGIN = Origin()


@dataclass(slots=True)
class Life:
    """One block: indices into the events. `death` is their number if the block outlives them."""

    block: int
    requested_bytes: int
    origin: Origin
    birth: int
    death: int
    unnamed: Category = Category.TEMPORARY
    """Its category as long as no role says otherwise."""
    roles: tuple[tuple[int, Role], ...] = ()

    def role_at(self, moment: int) -> Role | None:
        """The latest role at the event `moment`: the roles that follow an event directly belong to it."""
        for index, role in reversed(self.roles):
            if index <= moment:
                return role
        return None

    def category_at(self, moment: int) -> Category:
        role = self.role_at(moment)
        return role.category if role else self.unnamed


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """Events `first` to `last` (exclusive) of one phase; its Mark is the first of them."""

    phase: Phase
    iteration: int
    first: int
    last: int


_LASTING = {
    Phase.FORWARD: Category.ACTIVATION,
    Phase.CHECKPOINT_LOAD: Category.OTHER,
    Phase.CHECKPOINT_SAVE: Category.OTHER,
}
"""What is without a role and alive at the end of the phase in which it was born."""


def phase_spans(events: Sequence[Event]) -> list[PhaseSpan]:
    """From Mark to Mark. What comes before the first Mark belongs to the loading, iteration 0."""
    marks = [(index, event) for index, event in enumerate(events) if type(event) is Mark]
    if not marks or marks[0][0] > 0:
        marks.insert(0, (0, Mark(Phase.LOAD)))
    ends = [index for index, _ in marks[1:]] + [len(events)]
    return [PhaseSpan(mark.phase, mark.iteration, first, last) for (first, mark), last in zip(marks, ends, strict=True)]


def lives(events: Sequence[Event]) -> dict[int, Life]:
    """The life of every block.

    A block without a role is an activation if it is born in a forward phase and alive at its end, other if it is born
    in that of a checkpoint and alive at its end, else temporary.
    A role that follows its block's birth with nothing but roles between them holds from birth.
    """
    known: dict[int, Life] = {}
    for span in phase_spans(events):
        born: list[Life] = []
        moment = span.first  # of the latest event that was not a role
        for index, event in enumerate(events[span.first : span.last], span.first):
            # Exact types are the fastest question, and there may be a million events.
            kind = type(event)
            if kind is Role:
                assert isinstance(event, Role)
                if event.block in known:
                    known[event.block].roles += ((moment, event),)
                continue
            moment = index
            if kind is Alloc:
                assert isinstance(event, Alloc)
                life = Life(event.block, event.requested_bytes, event.origin or NO_ORIGIN, index, len(events))
                known[event.block] = life
                born.append(life)
            elif kind is Free:
                assert isinstance(event, Free)
                if event.block in known:
                    known[event.block].death = index
        if span.phase in _LASTING:
            for life in born:
                if life.death >= span.last:
                    life.unnamed = _LASTING[span.phase]
    return known


def alive_at(events: Sequence[Event], moment: int) -> list[Life]:
    """The blocks that are handed out after the event `moment`, by their births; when they die is not looked for.

    They are those of `lives` that are alive then, found without the others: of a long sequence those are few.
    """
    known: dict[int, Life] = {}
    began, lasting = 0, Category.TEMPORARY
    latest = 0  # of the events that are not roles
    for index, event in enumerate(events):
        kind = type(event)
        if kind is Role:
            assert isinstance(event, Role)
            if event.block in known:
                known[event.block].roles += ((latest, event),)
            continue
        if index > moment:
            break
        latest = index
        if kind is Alloc:
            assert isinstance(event, Alloc)
            life = Life(event.block, event.requested_bytes, event.origin or NO_ORIGIN, index, len(events))
            life.unnamed = lasting
            known[event.block] = life
        elif kind is Free:
            assert isinstance(event, Free)
            known.pop(event.block, None)
        elif kind is Mark:
            assert isinstance(event, Mark)
            began, lasting = index, _LASTING.get(event.phase, Category.TEMPORARY)
    if lasting is not Category.TEMPORARY:  # what the rest of this phase frees is
        for index in range(moment + 1, len(events)):
            event = events[index]
            if isinstance(event, Mark):
                break
            if isinstance(event, Free) and event.block in known and known[event.block].birth >= began:
                known[event.block].unnamed = Category.TEMPORARY
    return list(known.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The allocated peak taken apart. `at_peak` sums block bytes, slack included, to the peak."""

    event: int
    phase: Phase
    iteration: int
    at_peak: Mapping[Category, int]
    holders: tuple[Holder, ...]


class HolderKey(NamedTuple):
    """What tells one holder from another. A tuple: there may be a million to be added up."""

    category: Category
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str


def attribute(events: Sequence[Event], timeline: Timeline) -> Attribution:
    """The first moment of the highest allocated bytes, and whose they are."""
    moment = timeline.peak_allocated_index
    at_peak = dict.fromkeys(Category, 0)
    held: Counter[HolderKey] = Counter()
    counts: Counter[HolderKey] = Counter()
    for life in alive_at(events, moment):
        key = holder_of(life, life.role_at(moment))
        at_peak[key.category] += timeline.block_bytes[life.block]
        held[key] += timeline.block_bytes[life.block]
        counts[key] += 1
    holders = [Holder(bytes=size, count=counts[key], **key._asdict()) for key, size in held.items()]
    span = next(span for span in phase_spans(events) if moment < span.last)
    peak = timeline.peak_allocated_bytes
    assert sum(at_peak.values()) == peak, f"{sum(at_peak.values())} bytes have a holder, {peak} are allocated"
    return Attribution(
        event=moment,
        phase=span.phase,
        iteration=span.iteration,
        at_peak=at_peak,
        holders=tuple(sorted(holders, key=lambda holder: (-holder.bytes, holder.category, holder.module, holder.op))),
    )


def holder_of(life: Life, role: Role | None) -> HolderKey:
    """Who holds a block while it has this role."""
    origin = life.origin
    category = role.category if role else life.unnamed
    module = origin.module or (role.name if role else "")
    return HolderKey(category, module, origin.op, origin.shape, origin.dtype)


def state_phases(events: Sequence[Event], timeline: Timeline) -> tuple[PhaseStatement, ...]:
    """One statement per phase and iteration, in the order of their beginnings.

    The micro-batches of an iteration, whose forwards and backwards alternate, are taken together: the highest
    peak of them, the end of the last. What stands when a phase begins is part of its peak.
    """
    merged: dict[tuple[Phase, int], PhaseStatement] = {}
    for span in phase_spans(events):
        allocated = timeline.allocated_bytes[span.first : span.last]
        if not len(allocated):
            continue  # no events at all, or the replay ran out of memory before
        key = span.phase, span.iteration
        before = merged.get(key)
        reserved = max(timeline.reserved_bytes[span.first : span.last])
        merged[key] = PhaseStatement(
            phase=span.phase,
            iteration=span.iteration,
            peak_allocated_bytes=max(max(allocated), before.peak_allocated_bytes if before else 0),
            peak_reserved_bytes=max(reserved, before.peak_reserved_bytes if before else 0),
            end_allocated_bytes=allocated[-1],
        )
    return tuple(merged.values())


_MOST_HOLDERS = 1000


def state_rank_class(
    *,
    representative: int,
    ranks: str,
    coordinates: Mapping[str, int],
    events: Sequence[Event],
    unlimited: Timeline,
    capped: Timeline,
    outside: OutsideAllocator,
    kind: Kind = ANY,
    interval: Callable[[int], tuple[int, int]],
    capacity_bytes: int,
) -> RankClassStatement:
    """What the ranks of one class will hold.

    `unlimited` is the replay on a device without end, `capped` the one that may reserve capacity less outside; the
    figures are those of the capped one, which is what will happen, unless it runs out of memory: then those of the
    unlimited one, which is what it would have taken. `interval` turns device bytes into their interval.
    """
    runs_out = capped.out_of_memory is not None
    timeline = unlimited if runs_out else capped
    attribution = attribute(events, timeline)
    device_bytes = timeline.peak_reserved_bytes + outside.total_bytes
    peak = Peak(
        phase=attribution.phase,
        iteration=attribution.iteration,
        allocated_bytes=timeline.peak_allocated_bytes,
        reserved_bytes=timeline.peak_reserved_bytes,
        device_bytes=device_bytes,
        interval_bytes=interval(device_bytes),
    )
    return RankClassStatement(
        representative=representative,
        ranks=ranks,
        coordinates=coordinates,
        peak=peak,
        capacity_bytes=capacity_bytes,
        verdict=decide(
            runs_out=runs_out,
            highest_bytes=peak.interval_bytes[1],
            capacity_bytes=capacity_bytes,
            cache_releases=capped.cache_releases,
        ),
        cache_releases=capped.cache_releases,
        at_peak=attribution.at_peak,
        phases=state_phases(events, timeline),
        outside_allocator=outside,
        kind=kind,
        holders=attribution.holders[:_MOST_HOLDERS],
    )

"""Who holds bytes: the life of each block, holders and categories at the peak, and holders of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.allocator.timeline import Timeline
from planner.events import Alloc, Category, Event, Free, Mark, Origin, Phase, Role
from planner.report.statement import Holder

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


def phase_spans(events: Sequence[Event]) -> list[PhaseSpan]:
    """From Mark to Mark. What comes before the first Mark belongs to the loading, iteration 0."""
    marks = [(index, event) for index, event in enumerate(events) if type(event) is Mark]
    if not marks or marks[0][0] > 0:
        marks.insert(0, (0, Mark(Phase.LOAD)))
    ends = [index for index, _ in marks[1:]] + [len(events)]
    return [PhaseSpan(mark.phase, mark.iteration, first, last) for (first, mark), last in zip(marks, ends, strict=True)]


def lives(events: Sequence[Event]) -> dict[int, Life]:
    """The life of every block.

    A block without a role is an activation if it is born in a forward phase and alive at its end, else temporary.
    A role that follows its block's birth with nothing but roles between them holds from birth.
    """
    found: dict[int, Life] = {}
    for stretch in phase_spans(events):
        born = _read(events, stretch, found)
        if stretch.phase is Phase.FORWARD:
            for life in born:
                if life.death >= stretch.last:
                    life.unnamed = Category.ACTIVATION
    return found


def _read(events: Sequence[Event], stretch: PhaseSpan, found: dict[int, Life]) -> list[Life]:
    born: list[Life] = []
    moment, end = stretch.first, len(events)  # of the latest event that was not a role
    for index, event in enumerate(events[stretch.first : stretch.last], stretch.first):
        # Exact types are the fastest question, and there may be a million events.
        kind = type(event)
        if kind is Role:
            assert isinstance(event, Role)
            if event.block in found:
                found[event.block].roles += ((moment, event),)
            continue
        moment = index
        if kind is Alloc:
            assert isinstance(event, Alloc)
            life = Life(event.block, event.requested_bytes, event.origin or NO_ORIGIN, index, end)
            found[event.block] = life
            born.append(life)
        elif kind is Free:
            assert isinstance(event, Free)
            if event.block in found:
                found[event.block].death = index
    return born


def alive(found: dict[int, Life], moment: int) -> Iterator[Life]:
    """The blocks that are handed out after the event `moment`."""
    return (life for life in found.values() if life.birth <= moment < life.death)


def alive_at(events: Sequence[Event], moment: int) -> list[Life]:
    """The blocks that are handed out after the event `moment`, by their births; when they die is not looked for.

    They are those of `lives` that are alive then, found without the others: of a long sequence those are few.
    """
    found: dict[int, Life] = {}
    began, in_forward = 0, False
    latest = 0  # of the events that are not roles
    for index, event in enumerate(events):
        kind = type(event)
        if kind is Role:
            assert isinstance(event, Role)
            if event.block in found:
                found[event.block].roles += ((latest, event),)
            continue
        if index > moment:
            break
        latest = index
        if kind is Alloc:
            assert isinstance(event, Alloc)
            life = Life(event.block, event.requested_bytes, event.origin or NO_ORIGIN, index, len(events))
            if in_forward:
                life.unnamed = Category.ACTIVATION
            found[event.block] = life
        elif kind is Free:
            assert isinstance(event, Free)
            found.pop(event.block, None)
        elif kind is Mark:
            assert isinstance(event, Mark)
            began, in_forward = index, event.phase is Phase.FORWARD
    if in_forward:
        _are_temporary(found, began, events, moment + 1)
    return list(found.values())


def _are_temporary(found: dict[int, Life], began: int, events: Sequence[Event], after: int) -> None:
    """Blocks of a forward that began at `began` and frees them between `after` and its end."""
    for index in range(after, len(events)):
        event = events[index]
        if isinstance(event, Mark):
            return
        if isinstance(event, Free) and event.block in found and found[event.block].birth >= began:
            found[event.block].unnamed = Category.TEMPORARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The allocated peak taken apart.

    `at_peak` sums block bytes, slack included, to the peak; `requested_at_peak` the bytes that were asked for.
    """

    event: int
    phase: Phase
    iteration: int
    at_peak: Mapping[Category, int]
    requested_at_peak: Mapping[Category, int]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DnnMem:
    """Device bytes in the classes of DNNMem (Gao et al., ESEC/FSE 2020).

    `resident` is the CUDA context and what else lives outside, internal fragmentation and the allocator's reserve.
    """

    weight_bytes: int
    in_out_bytes: int
    ephemeral_bytes: int
    resident_bytes: int


class HolderKey(NamedTuple):
    """What tells one holder from another. A tuple: there may be a million to be added up."""

    category: Category
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str


_CLASSES = {
    Category.PARAMETER: "weight",
    Category.GRADIENT: "weight",
    Category.BUCKET: "weight",
    Category.OPTIMIZER_STATE: "weight",
    Category.ACTIVATION: "in_out",
    Category.INPUT: "in_out",
    Category.TEMPORARY: "ephemeral",
    Category.WORKSPACE: "ephemeral",
    Category.COMMUNICATION: "ephemeral",
    Category.OTHER: "ephemeral",
}


def attribute(events: Sequence[Event], timeline: Timeline) -> Attribution:
    """The first moment of the highest allocated bytes, and whose they are."""
    moment = timeline.peak_allocated_index
    at_peak = dict.fromkeys(Category, 0)
    requested = dict.fromkeys(Category, 0)
    held: Counter[HolderKey] = Counter()
    counts: Counter[HolderKey] = Counter()
    for life in alive_at(events, moment):
        size = timeline.block_bytes[life.block]
        key = holder_of(life, life.role_at(moment))
        at_peak[key.category] += size
        requested[key.category] += life.requested_bytes
        held[key] += size
        counts[key] += 1
    holders = [Holder(bytes=size, count=counts[key], **key._asdict()) for key, size in held.items()]
    where = next(each for each in phase_spans(events) if moment < each.last)
    peak = timeline.peak_allocated_bytes
    assert sum(at_peak.values()) == peak, f"{sum(at_peak.values())} bytes have a holder, {peak} are allocated"
    return Attribution(
        event=moment,
        phase=where.phase,
        iteration=where.iteration,
        at_peak=at_peak,
        requested_at_peak=requested,
        holders=tuple(sorted(holders, key=lambda each: (-each.bytes, each.category, each.module, each.op))),
    )


def dnnmem(attribution: Attribution, device_bytes: int) -> DnnMem:
    """The peak in DNNMem's classes: requested bytes by class, everything else of the device bytes is resident."""
    sums = dict.fromkeys(("weight", "in_out", "ephemeral"), 0)
    for category, requested in attribution.requested_at_peak.items():
        sums[_CLASSES[category]] += requested
    return DnnMem(
        weight_bytes=sums["weight"],
        in_out_bytes=sums["in_out"],
        ephemeral_bytes=sums["ephemeral"],
        resident_bytes=device_bytes - sum(sums.values()),
    )


def holder_of(life: Life, role: Role | None) -> HolderKey:
    """Who holds a block while it has this role."""
    origin = life.origin
    category = role.category if role else life.unnamed
    module = origin.module or (role.name if role else "")
    return HolderKey(category, module, origin.op, origin.shape, origin.dtype)


FROZEN = ("reference", "reward")


@dataclass(frozen=True, slots=True)
class HeldInPhase:
    """One stretch: its highest reserved bytes, and block bytes of some holders when most is allocated in it."""

    span: PhaseSpan
    reserved_bytes: int
    allocated_bytes: int
    parameter_bytes: int
    """Of the trainer's model, gathered parameters too."""
    optimizer_bytes: int
    reference_bytes: int
    reward_bytes: int


def held_in_phases(events: Sequence[Event], timeline: Timeline) -> list[HeldInPhase]:
    """Of every stretch that was replayed, in order."""
    spans = [each for each in phase_spans(events) if each.first < len(timeline.allocated_bytes)]
    heights = [_height(each, timeline) for each in spans]
    sums: Counter[str] = Counter()
    holder: dict[int, str] = {}
    found: list[HeldInPhase] = []
    at = 0
    for span, height in zip(spans, heights, strict=True):
        at = _advance(events, at, height + 1, sums, holder, timeline)
        found.append(
            HeldInPhase(
                span=span,
                reserved_bytes=max(timeline.reserved_bytes[span.first : span.last]),
                allocated_bytes=timeline.allocated_bytes[height],
                parameter_bytes=sums["parameter"],
                optimizer_bytes=sums["optimizer"],
                reference_bytes=sums["reference"],
                reward_bytes=sums["reward"],
            )
        )
        at = _advance(events, at, min(span.last, len(timeline.allocated_bytes)), sums, holder, timeline)
    return found


def _height(span: PhaseSpan, timeline: Timeline) -> int:
    allocated = timeline.allocated_bytes[span.first : span.last]
    return span.first + allocated.index(max(allocated))


def _advance(
    events: Sequence[Event], at: int, end: int, sums: Counter[str], holder: dict[int, str], timeline: Timeline
) -> int:
    while at < end or (at < len(events) and at > 0 and isinstance(events[at], Role)):
        event = events[at]
        if isinstance(event, Alloc):
            holder[event.block] = ""
        elif isinstance(event, Role) and event.block in holder:
            size = timeline.block_bytes.get(event.block, 0)
            sums[holder[event.block]] -= size
            holder[event.block] = _holder(event)
            sums[holder[event.block]] += size
        elif isinstance(event, Free) and event.block in holder:
            sums[holder.pop(event.block)] -= timeline.block_bytes.get(event.block, 0)
        at += 1
    return at


def _holder(role: Role) -> str:
    if role.category is Category.OPTIMIZER_STATE:
        return "optimizer"
    if role.category is not Category.PARAMETER:
        return ""
    first = role.name.partition(".")[0]
    return first if first in FROZEN else "parameter"

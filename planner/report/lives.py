"""The lives of blocks in a sequence of events: born where, dead when, and of which category at each moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.events import Alloc, Category, Event, Free, Mark, Origin, Phase, Role

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

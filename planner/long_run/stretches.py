"""Cuts a trace whose steps have batches of several lengths into stretches that can be put together anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.events import Alloc, Event, Free, Mark, Phase
from planner.job.length_draws import Steps


class Place(StrEnum):
    """Where in a step a stretch belongs: in an accumulation gradients are born in the first micro-batch, and reduced
    in the last."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    STEP = "step"
    """The optimizer's, to the end of the iteration."""


_PLACES = {1: (Place.LAST,), 2: (Place.FIRST, Place.LAST), 3: (Place.FIRST, Place.MIDDLE, Place.LAST)}
"""By the number of micro-batches that are traced of a step."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events between two moments. `found` are the blocks that others left for it, by their age, without those that
    stay for good; `left` are the blocks that it leaves so."""

    events: tuple[Event, ...]
    found: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TracedRun:
    """The parts of a trace: what happened `before` the steps that are alike, one stretch for each place and length,
    what happened `after` the last step, and which blocks stood in between where steps began."""

    before: tuple[Event, ...]
    stretches: Mapping[Place, Mapping[int, Stretch]]
    standing: tuple[int, ...]
    after: Stretch


def places_of(micro_batches: int) -> tuple[Place, ...]:
    """Of each micro-batch of a step with so many, and of its end."""
    if micro_batches <= 2:
        return (*_PLACES[micro_batches], Place.STEP)
    return (Place.FIRST, *[Place.MIDDLE] * (micro_batches - 2), Place.LAST, Place.STEP)


def cut_run(events: Sequence[Event], steps: Steps, first_steps: int) -> TracedRun:
    """The parts of a trace of these steps, of which the first do what later ones do not; the last is only there to give
    up what the one before it left. Raises ValueError for a trace of other steps."""
    starts = _starts(events)
    if any(len(starts.get(number, ())) != len(step) + 1 for number, step in enumerate(steps, 1)):
        raise ValueError("the trace has other steps than its job")
    begins, last = starts[first_steps + 1][0], starts[len(steps)][0]
    over = next((index for index in range(starts[len(steps)][-1] + 1, len(events)) if _is_mark(events[index])), None)
    end = len(events) if over is None else over
    cuts = sorted({each for number in range(first_steps + 1, len(steps) + 1) for each in starts[number]} | {end})
    alive = alive_at(events, cuts)
    staying = alive[begins].keys() & alive[last].keys()

    def stretch(first: int, after: int) -> Stretch:
        found = tuple(each for each in alive[first] if each not in staying)
        left = tuple(each for each in alive.get(after, {}) if each not in staying)
        return Stretch(tuple(events[first:after]), found, left)

    stretches: dict[Place, dict[int, Stretch]] = {place: {} for place in places_of(len(steps[0]))}
    for number in range(first_steps + 1, len(steps)):
        following = (*starts[number][1:], starts[number + 1][0])
        for place, first, after in zip(places_of(len(steps[0])), starts[number], following, strict=True):
            stretches[place][steps[number - 1][0]] = stretch(first, after)
    standing = tuple(each for each in alive[begins] if each not in staying)
    return TracedRun(tuple(events[:begins]), stretches, standing, stretch(end, len(events)))


def _is_mark(event: Event) -> bool:
    return type(event) is Mark


def _starts(events: Sequence[Event]) -> dict[int, list[int]]:
    """By iteration, where its micro-batches and its optimizer's step begin."""
    found: dict[int, list[int]] = {}
    for index, event in enumerate(events):
        if isinstance(event, Mark) and event.phase in (Phase.FORWARD, Phase.OPTIMIZER_STEP):
            found.setdefault(event.iteration, []).append(index)
    return found


def alive_at(events: Sequence[Event], cuts: Iterable[int]) -> dict[int, dict[int, None]]:
    """The blocks that are handed out before each of these events, by their age."""
    alive: dict[int, None] = {}
    found: dict[int, dict[int, None]] = {}
    before = 0
    for cut in cuts:
        for event in events[before:cut]:
            kind = type(event)
            if kind is Alloc:
                alive[event.block] = None  # type: ignore[union-attr]
            elif kind is Free:
                alive.pop(event.block, None)  # type: ignore[union-attr]
        found[cut], before = dict(alive), cut
    return found

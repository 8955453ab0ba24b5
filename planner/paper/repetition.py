"""Repetition that was traced once, written out: stretches of events that happen again, with blocks of their own.

A stretch lies between two places of the sequence. Whatever does not add up is an error: a trace without folding then
tells the truth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.events import Alloc, Event, Free, FreeCompleted, Keep, Repeat, Role, Use, copy_stretch


class DoesNotFoldError(Exception):
    """What was folded is not a repetition: trace it without folding."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two events, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Again:
    """What happened between two places happens here `times` times, so many `iterations` later, and leaves nothing. Or
    it is a `whole` iteration: each leaves for the next what it found, and is one iteration later."""

    first: int
    after: int
    times: int
    iterations: int = 0
    whole: bool = False


Folded = Event | Place | Again


def write_out(events: Iterable[Folded], unused: int) -> tuple[list[Event], list[Repeat]]:
    """The plain sequence, and which of its stretches repeat without being written again.

    Blocks from `unused` on have no name yet. Raises DoesNotFoldError.
    """
    writing = _EventWriter(unused)
    for event in events:
        writing.take(event)
    return writing.out, writing.repeats


class _EventWriter:
    def __init__(self, unused: int) -> None:
        self.out: list[Event] = []
        self.repeats: list[Repeat] = []
        self._unused = unused
        self._at: dict[int, int] = {}
        self._now: dict[int, int] = {}
        """Under which name a block goes by now."""

    def take(self, event: Folded) -> None:
        if isinstance(event, Free | Use | Role | Keep):
            name = self._name(event.block)
            self.out.append(event if name == event.block else replace(event, block=name))
        elif isinstance(event, Place):
            self._at[event.number] = len(self.out)
        elif isinstance(event, Again):
            (self._repeat_whole if event.whole else self._repeat_stretch)(event)
        else:
            self.out.append(event)

    def _name(self, block: int) -> int:
        while block in self._now:
            block = self._now[block]
        return block

    def _stretch(self, first: int, after: int) -> list[Event]:
        return self.out[self._at[first] : self._at[after]]

    def _repeat_stretch(self, again: Again) -> None:
        stretch, times = self._stretch(again.first, again.after), again.times
        _refuse_open(stretch)
        if again.iterations or self._at[again.after] != len(self.out):
            copied, own = copy_stretch(stretch, self._unused, again.iterations)
            self._unused += len(own)
            self.out += copied
            times -= 1
        if times:
            self.repeats.append(Repeat(len(self.out) - len(stretch), len(self.out), times))

    def _repeat_whole(self, again: Again) -> None:
        stretch = self._stretch(again.first, again.after)
        born = {event.block: event for event in stretch if isinstance(event, Alloc)}
        freed = {event.block for event in stretch if isinstance(event, Free)}
        left = [block for block in born if block not in freed]
        found = self._before(again.first, [block for block in freed if block not in born])
        # What a repetition leaves alive for the next is what it found alive and freed.
        if [_kind(each) for each in found] != [_kind(born[block]) for block in left]:
            raise DoesNotFoldError("it does not leave what it found")
        heirs = dict(zip((each.block for each in found), left, strict=True))
        latest = {block: block for block in left}
        began = self._at[again.first]
        inside = [each for each in self.repeats if each.first >= began]
        for time in range(1, again.times + 1):
            old = {block: latest[heir] for block, heir in heirs.items()}
            moved = len(self.out) - began
            self.repeats += [Repeat(each.first + moved, each.after + moved, each.times) for each in inside]
            copied, names = copy_stretch(stretch, self._unused, time, old)
            self._unused += len(names)
            self.out += copied
            latest = {block: names[block] for block in left}
        self._now.update({block: name for block, name in latest.items() if block != name})

    def _before(self, place: int, blocks: list[int]) -> list[Alloc]:
        if not blocks:
            return []
        wanted = set(blocks)
        return [each for each in self.out[: self._at[place]] if isinstance(each, Alloc) and each.block in wanted]


def _kind(event: Alloc) -> tuple[object, ...]:
    return (event.requested_bytes, event.stream, event.origin)


def _refuse_open(stretch: list[Event]) -> None:
    """Raises DoesNotFoldError for a stretch that leaves a block, or frees one that was there before."""
    alive: set[int] = set()
    for event in stretch:
        if isinstance(event, Alloc):
            alive.add(event.block)
        elif isinstance(event, Free):
            if event.block not in alive:
                raise DoesNotFoldError("it frees what is not its own")
            alive.remove(event.block)
        elif isinstance(event, FreeCompleted):
            raise DoesNotFoldError("the host waits in it for the device")
    if alive:
        raise DoesNotFoldError("it leaves something")

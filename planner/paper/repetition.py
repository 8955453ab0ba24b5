"""Repetition that was traced once, written out: stretches of events that happen again, with blocks of their own.

A stretch lies between two places of the sequence. It happens again as a whole (an iteration of training), or once for
each micro-batch with what its forward left alive freed by its backward. Whatever does not add up is an error: a trace
without folding then tells the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from planner.events import Alloc, Event, Free, FreeCompleted, Keep, Repeat, Role, Use, copy_stretch, rename_blocks


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


@dataclass(frozen=True, slots=True)
class Copy:
    """A stretch happens once more, for something else of its kind, under the name `key`.

    `parents` are stretches whose blocks it refers to, each with the key of the copy that has them in this case.
    `bound` names blocks of the stretch that exist in this case: those are written down when allocated and freed. So
    are those that it has `taken` from elsewhere, each with the block that stands for it in this case.
    """

    first: int
    after: int
    key: int
    parents: tuple[tuple[int, int, int], ...] = ()
    bound: tuple[tuple[int, int], ...] = ()
    taken: tuple[tuple[int, int], ...] = ()


Folded = Event | Place | Again | Copy


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
        self._announced: set[int] = set()
        """Blocks whose allocation was written already, as part of a copy."""
        self._copies: dict[int, tuple[tuple[int, int], dict[int, int]]] = {}
        """By key: the stretch, and its blocks with their names in the copy."""
        self._stand_for: dict[tuple[int, int], frozenset[int]] = {}

    def take(self, event: Folded) -> None:
        if isinstance(event, Alloc):
            if event.block not in self._announced:
                self.out.append(event)
        elif isinstance(event, Free | Use | Role | Keep):
            name = self._name(event.block)
            self.out.append(event if name == event.block else replace(event, block=name))
        elif isinstance(event, Place):
            self._at[event.number] = len(self.out)
        elif isinstance(event, Again):
            (self._repeat_whole if event.whole else self._repeat_stretch)(event)
        elif isinstance(event, Copy):
            self._copy(event)
        else:
            self.out.append(event)

    def _name(self, block: int) -> int:
        while block in self._now:
            block = self._now[block]
        return block

    def _fresh(self) -> int:
        self._unused += 1
        return self._unused - 1

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

    def _copy(self, copy: Copy) -> None:
        where = (copy.first, copy.after)
        stretch = self._stretch(*where)
        names = {event.block: self._fresh() for event in stretch if isinstance(event, Alloc)}
        self._copies[copy.key] = (where, names)
        known: dict[int, int] = dict(names)
        elsewhere: set[int] = set()
        for first, after, key in copy.parents:
            of_parent, given_by_it = self._of_parent(first, after, key)
            known |= of_parent
            elsewhere |= given_by_it
        for block, there in copy.taken:
            mine = self._name(block)
            known[mine] = self._name(there)
            elsewhere.add(mine)
        for block, there in copy.bound:
            mine = self._name(block)
            if mine not in names:
                raise DoesNotFoldError("what it gives was not born in it")
            self._announced.add(there)
            self._now[there] = names[mine]
        given = frozenset(self._name(block) for block, _ in copy.bound)
        self._stand_for[where] = given
        for event in stretch:
            if isinstance(event, Free):
                if event.block in elsewhere or event.block in given:
                    continue
                if event.block not in known:
                    raise DoesNotFoldError("it frees what is not its own")
            self.out.append(rename_blocks(event, known, 0))

    def _of_parent(self, first: int, after: int, key: int) -> tuple[Mapping[int, int], frozenset[int]]:
        """The blocks of a stretch with their names in a copy, and those of them that the program itself tells of."""
        where, names = self._copies[key]
        given = self._stand_for[where]
        if where == (first, after):
            return names, given
        mine = [event for event in self._stretch(first, after) if isinstance(event, Alloc)]
        theirs = [event for event in self._stretch(*where) if isinstance(event, Alloc)]
        if [_kind(each) for each in mine] != [_kind(each) for each in theirs]:
            raise DoesNotFoldError("two of a kind are not alike")
        pairs = list(zip(mine, theirs, strict=True))
        return {a.block: names[b.block] for a, b in pairs}, frozenset(a.block for a, b in pairs if b.block in given)


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

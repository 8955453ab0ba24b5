"""Writes events out for readers that take them one by one: what repeats is taken until it changes nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.events import Event, Repeat, copy_stretch, first_unused_block, rename_all

_LONGEST_CYCLE = 64
"""States that are remembered: of a cycle of more, every repetition is written."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Between two repetitions of a stretch, for the reader of their events."""

    state: object
    """All that decides what comes of further events, but for the names of blocks."""
    names: tuple[int, ...]
    """How blocks are called that a repetition passes on to the next, in the same order in every repetition."""
    counted: int = 0
    """What adds up from repetition to repetition."""


class RepeatWriter(ABC):
    """Writes events down as it takes them, a stretch that repeats only until its state has been there before."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events: list[Event] = []
        self.repeats: list[Repeat] = []
        """What of the events happens more often than it is written."""
        self.counted_unwritten = 0
        """What adds up in repetitions that are not written (`Boundary.counted`)."""
        self._unused = first_unused_block(events)

    @abstractmethod
    def take(self, events: Iterable[Event]) -> None:
        """Takes further events, and writes down what comes of them."""

    @abstractmethod
    def look(self, heirs: tuple[int, ...]) -> Boundary | None:
        """What is now, where blocks of these names are passed on; None where no state comes twice."""

    def is_over(self) -> bool:
        """Whether nothing more comes of further events."""
        return False

    def write(self, events: Sequence[Event], repeats: Sequence[Repeat]) -> None:
        """Takes everything that happens. `repeats` come in order and do not overlap."""
        now: Mapping[int, int] = {}
        written = 0
        for repeat in repeats:
            self.take(rename_all(events[written : repeat.first], now))
            now = self._take_repeated(events[repeat.first : repeat.after], repeat, now)
            written = repeat.after
        self.take(rename_all(events[written:], now))

    def _take_repeated(self, stretch: Sequence[Event], repeat: Repeat, now: Mapping[int, int]) -> Mapping[int, int]:
        """How blocks are called afterwards."""
        names, own = now, dict[int, int]()
        starts, past = [len(self.events)], [self.look(tuple(names.get(block, block) for block, _ in repeat.heirs))]
        self.take(rename_all(stretch, now))
        done, left = 0, repeat.times
        while left and not self.is_over():
            starts.append(len(self.events))
            past = [*past[-_LONGEST_CYCLE:], self.look(tuple(repeat.left_names(names, own).values()))]
            cycle = _cycle_of(past)
            if cycle and left >= cycle:
                first, last = past[-1 - cycle], past[-1]
                assert first is not None
                assert last is not None
                times, left = divmod(left, cycle)
                heirs = tuple(zip(first.names, last.names, strict=True))
                self.repeats.append(Repeat(starts[-1 - cycle], starts[-1], times, cycle * repeat.iterations, heirs))
                self.counted_unwritten += times * (last.counted - first.counted)
                done, past = done + times * cycle, []
                continue
            names = {**now, **repeat.pass_on(names, own)}
            done, left = done + 1, left - 1
            copied, own = copy_stretch(stretch, self._unused, done * repeat.iterations, names)
            self._unused += len(own)
            self.take(copied)
        return {**now, **repeat.left_names(names, own)}


def _cycle_of(past: Sequence[Boundary | None]) -> int:
    """After how many repetitions the latest state was there before; 0 if it was not."""
    latest = past[-1]
    if latest is None:
        return 0
    befores = ((cycle, past[-1 - cycle]) for cycle in range(1, len(past)))
    return next((cycle for cycle, before in befores if before is not None and before.state == latest.state), 0)

"""Replays events of which stretches repeat: each until the allocator comes back to a state that it has had.

From then on the repetitions do again what those since then did, for the allocator is told the same in the same state.
Two states in turn are common: what an iteration leaves (its loss, its batch) is given up after the next has taken its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.replay import Replay, replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Repeat, copy_stretch, first_unused_block, rename_all


@dataclass(frozen=True, slots=True)
class SettledReplay:
    """A replay, the events that it took, and what repeats of those without being replayed."""

    timeline: Timeline
    events: tuple[Event, ...]
    repeats: tuple[Repeat, ...]


def replay_until_settled(
    events: tuple[Event, ...],
    repeats: Sequence[Repeat],
    rules: Rules = Rules(),  # noqa: B008 - frozen
    capacity_bytes: int | None = None,
    *,
    device_bytes: int | None = None,
) -> SettledReplay:
    """As :func:`planner.allocator.replay.replay` of everything written out; repetitions that change nothing are left
    away.

    Raises ValueError for events that no program could have caused.
    """
    if not repeats:
        timeline = replay(events, rules, capacity_bytes, device_bytes=device_bytes)
        return SettledReplay(timeline, events, ())
    run = _Run(Replay(rules, capacity_bytes, device_bytes=device_bytes), first_unused_block(events))
    written = 0
    for repeat in repeats:
        run.take(events[written : repeat.first])
        run.take_repeated(events[repeat.first : repeat.after], repeat)
        written = repeat.after
    run.take(events[written:])
    timeline = replace(run.replay.timeline(), cache_releases=run.replay.allocator.cache_releases + run.releases)
    return SettledReplay(timeline, tuple(run.events), tuple(run.repeats))


_LONGEST_CYCLE = 64
"""States that are remembered: of a cycle of more, every repetition is replayed."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The allocator after a repetition: its state, where the repetition's heirs are, and how they are called."""

    state: tuple[object, ...]
    addresses: tuple[int | None, ...]
    names: tuple[int, ...]
    cache_releases: int

    def is_like(self, other: _Seen) -> bool:
        return self.addresses == other.addresses and self.state == other.state


class _Run:
    def __init__(self, replay: Replay, unused: int) -> None:
        self.replay = replay
        self.events: list[Event] = []
        self.repeats: list[Repeat] = []
        self.releases = 0
        """Releases of the cache in repetitions that are left away."""
        self._unused = unused
        self._now: dict[int, int] = {}
        """How blocks are called that stand for others since a repetition."""

    def take(self, events: Sequence[Event]) -> None:
        renamed = list(rename_all(events, self._now))
        self.replay.feed(renamed)
        self.events += renamed

    def take_repeated(self, stretch: Sequence[Event], repeat: Repeat) -> None:
        now, names, own = self._now, self._now, dict[int, int]()
        past = [self._look(repeat, names, own, before=True)]
        self.take(stretch)
        done, left = 0, repeat.times
        while left and self.replay.out_of_memory is None:
            past = [*past[-_LONGEST_CYCLE:], self._look(repeat, names, own)]
            cycle = _cycle_of(past)
            if cycle and left >= cycle:
                times, left = divmod(left, cycle)
                self._leave_away(len(stretch) * cycle, times, cycle * repeat.iterations, past[-1 - cycle :])
                done += times * cycle
                past = []
                continue
            names = {**now, **repeat.pass_on(names, own)}
            done, left = done + 1, left - 1
            copied, own = copy_stretch(stretch, self._unused, done * repeat.iterations, names)
            self._unused += len(own)
            self._now = {}
            self.take(copied)
        self._now = {**now, **repeat.left_names(names, own)}

    def _look(
        self, repeat: Repeat, names: Mapping[int, int], own: Mapping[int, int], *, before: bool = False
    ) -> _Seen | None:
        """None where the age of blocks counts, too."""
        allocator = self.replay.allocator
        state = allocator.state()
        if state is None:
            return None
        called = [names.get(found, found) for found, _ in repeat.heirs]
        if not before:
            called = [own.get(left, names.get(left, left)) for _, left in repeat.heirs]
        addresses = tuple(map(self.replay.address_of, called))
        return _Seen(state, addresses, tuple(called), allocator.cache_releases)

    def _leave_away(self, length: int, times: int, iterations: int, cycle: Sequence[_Seen | None]) -> None:
        first, last = cycle[0], cycle[-1]
        assert first is not None
        assert last is not None
        heirs = tuple(zip(first.names, last.names, strict=True))
        self.repeats.append(Repeat(len(self.events) - length, len(self.events), times, iterations, heirs))
        self.releases += times * (last.cache_releases - first.cache_releases)


def _cycle_of(past: Sequence[_Seen | None]) -> int:
    """After how many repetitions the latest state was there before; 0 if it was not."""
    latest = past[-1] if past else None
    if latest is None:
        return 0
    for cycle in range(1, len(past)):
        before = past[-1 - cycle]
        if before is not None and latest.is_like(before):
            return cycle
    return 0

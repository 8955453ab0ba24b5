"""Replays events of which stretches repeat: each until the allocator comes back to the state in which it began.

From then on every repetition does what the last one did, for the allocator is told the same in the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.allocator.replay import Replay, replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Repeat, copy_stretch, first_unused_block


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
    run = _Run(Replay(rules, capacity_bytes, device_bytes=device_bytes), events)
    written = 0
    for repeat in repeats:
        run.take(events[written : repeat.first])
        run.take_repeated(events[repeat.first : repeat.after], repeat.times)
        written = repeat.after
    run.take(events[written:])
    timeline = replace(run.replay.timeline(), cache_releases=run.replay.allocator.cache_releases + run.releases)
    return SettledReplay(timeline, tuple(run.events), tuple(run.repeats))


class _Run:
    def __init__(self, replay: Replay, events: Sequence[Event]) -> None:
        self.replay = replay
        self.events: list[Event] = []
        self.repeats: list[Repeat] = []
        self.releases = 0
        """Releases of the cache in repetitions that are left away."""
        self._unused = first_unused_block(events)

    def take(self, events: Sequence[Event]) -> None:
        self.replay.feed(events)
        self.events += events

    def take_repeated(self, stretch: Sequence[Event], times: int) -> None:
        allocator = self.replay.allocator
        state, releases = allocator.state(), allocator.cache_releases
        self.take(stretch)
        while times and self.replay.out_of_memory is None:
            before, state = state, allocator.state()
            if state is not None and state == before:
                self.releases += times * (allocator.cache_releases - releases)
                break
            releases = allocator.cache_releases
            copied, self._unused = copy_stretch(stretch, self._unused)
            self.take(copied)
            times -= 1
        if times:
            self.repeats.append(Repeat(len(self.events) - len(stretch), len(self.events), times))

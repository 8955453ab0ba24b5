"""The most that was allocated in each phase of a recorded run, as far as frames tell the phase of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import Recording
from planner.events import Alloc, Phase
from planner.report.recorded_frames import frames_of, phase_of


class PhasePeaks:
    """Follows a recording event by event; a phase reaches from the first request made in it to the next phase's."""

    def __init__(self, recording: Recording, trace: Sequence[Mapping[str, Any]]) -> None:
        self._recording = recording
        entries = (each for each in trace if each["action"] == "alloc")
        born = (event.block for event in recording.events if isinstance(event, Alloc))
        self._phases = dict(zip(born, (phase_of(frames_of(each)) for each in entries), strict=True))
        self._now: Phase | None = None
        self._most: dict[Phase, int] = {}
        self.before_forward_bytes: int | None = None
        """What was held when the recorded run first came to a forward: parameters, and states if there were any."""
        self._before = 0

    def look(self, index: int, allocator: CachingAllocator) -> None:
        """After event `index`; -1 is before the first."""
        if index < 0:
            self._before = allocator.allocated
            return
        event = self._recording.events[index]
        if isinstance(event, Alloc):
            self._now = self._phases[event.block] or self._now
            if self._now is Phase.FORWARD and self.before_forward_bytes is None:
                self.before_forward_bytes = self._before
        self._before = allocator.allocated
        if self._now is not None:
            self._most[self._now] = max(self._most.get(self._now, 0), allocator.allocated)

    def most(self) -> Mapping[Phase, int]:
        """Bytes by phase, in the order of a step."""
        return {phase: self._most[phase] for phase in Phase if phase in self._most}

    def sizes(self) -> frozenset[int]:
        """Every size that was asked for, or that a block at the start had."""
        held = (
            piece.requested_bytes
            for each in self._recording.start
            for piece in each.stretches
            if piece.block is not None
        )
        asked = (event.requested_bytes for event in self._recording.events if isinstance(event, Alloc))
        return frozenset((*held, *asked))

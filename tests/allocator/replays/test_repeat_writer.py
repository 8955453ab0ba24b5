"""What repeats is written until its state has been there before; whatever is left over of a cycle is written too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from planner.events import Alloc, Event, Free, Mark, Phase, Repeat, write_out_repeats
from planner.repeat_writer import Boundary, RepeatWriter

STRETCH = [Mark(Phase.FORWARD, 1), Alloc(0, 512), Free(0)]
AFTERWARDS = Mark(Phase.EVAL, 1)


class EveryThirdTime(RepeatWriter):
    """One that drops the block of every third forward pass, so that three make a cycle."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__(events)
        self.passes = 0

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.passes += isinstance(event, Mark) and event.phase is Phase.FORWARD
            if isinstance(event, Mark) or self.passes % 3:
                self.events.append(event)

    def look(self, heirs: tuple[int, ...]) -> Boundary:
        return Boundary(self.passes % 3, heirs)


@pytest.mark.parametrize("times", [0, 1, 2, 40, 41, 42])
def test_of_a_cycle_of_several_repetitions_what_is_left_over_is_written(times: int) -> None:
    writer = EveryThirdTime(STRETCH)
    writer.write([*STRETCH, AFTERWARDS], [Repeat(0, len(STRETCH), times, 1)])
    written = list(write_out_repeats(writer.events, writer.repeats))

    phases = [event for event in written if isinstance(event, Mark)]
    assert [event.phase for event in phases] == [Phase.FORWARD] * (times + 1) + [Phase.EVAL]
    assert sum(isinstance(event, Alloc) for event in written) == times + 1 - (times + 1) // 3
    assert len(writer.events) < 20

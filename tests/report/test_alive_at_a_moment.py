"""Who is alive at a moment is found without the lives of all the others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.report.attribution import Life, alive_at, lives


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Blocks that are born, named and given up, in stretches."""
    events: list[Event] = []
    standing: list[int] = []
    for name in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(["alloc", "alloc", "free", "role", "mark"]))
        if kind == "alloc":
            standing.append(name)
            events.append(Alloc(name, 512))
        elif kind == "mark":
            events.append(Mark(draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD])), 1))
        elif standing and kind == "free":
            events.append(Free(standing.pop(draw(st.integers(0, len(standing) - 1)))))
        elif standing:
            events.append(Role(draw(st.sampled_from(standing)), draw(st.sampled_from(Category))))
    return events


@settings(max_examples=300, deadline=None)
@given(events=histories(), data=st.data())
def test_they_are_those_of_all_lives(events: list[Event], data: st.DataObject) -> None:
    moment = data.draw(st.integers(-1, max(len(events) - 1, 0)))

    expected = [life for life in lives(events).values() if life.birth <= moment < life.death]

    assert [_seen(life, moment) for life in alive_at(events, moment)] == [_seen(life, moment) for life in expected]


def _seen(life: Life, moment: int) -> tuple[object, ...]:
    return life.block, life.requested_bytes, life.origin, life.birth, life.role_at(moment), life.category_at(moment)

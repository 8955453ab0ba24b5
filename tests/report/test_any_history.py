"""Whatever a program does, the report accounts for every byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Alloc, Category, EmptyCache, Event, Free, Mark, Phase, Role, Synchronize, Use
from planner.report.attribution import attribute, state_phases
from planner.report.class_timeline import changes_of, largest_holders
from planner.report.memory_viz import snapshot

_SIZES = st.sampled_from([1, 512, 1000, 1 << 20, (1 << 20) + 1, 7 << 20, 25 << 20])


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events as a program could cause them: what is given up, used or named is alive."""
    events: list[Event] = []
    alive: list[int] = []
    names = 0
    for _ in range(draw(st.integers(0, 60))):
        kind = draw(st.sampled_from(["alloc", "alloc", "alloc", "free", "role", "use", "mark", "wait", "empty"]))
        if kind == "alloc":
            names += 1
            alive.append(names)
            events.append(Alloc(names, draw(_SIZES), draw(st.integers(0, 1))))
        elif kind == "mark":
            events.append(Mark(draw(st.sampled_from(Phase)), draw(st.integers(0, 2))))
        elif kind in ("wait", "empty"):
            events.append(Synchronize() if kind == "wait" else EmptyCache())
        elif alive:
            block = draw(st.sampled_from(alive))
            if kind == "free":
                alive.remove(block)
                events.append(Free(block))
            elif kind == "use":
                events.append(Use(block, draw(st.integers(0, 2))))
            else:
                events.append(Role(block, draw(st.sampled_from(Category))))
    return events


@settings(max_examples=150, deadline=None)
@given(events=histories(), conf=st.sampled_from(["", "expandable_segments:True"]))
def test_every_byte_is_accounted_for(events: list[Event], conf: str) -> None:
    timeline = replay(events, Rules.from_conf(conf))

    found = attribute(events, timeline)
    assert sum(found.at_peak.values()) == timeline.peak_allocated_bytes
    assert sum(holder.bytes for holder in found.holders) == timeline.peak_allocated_bytes

    phases = state_phases(events, timeline)
    assert max((each.peak_allocated_bytes for each in phases), default=0) == timeline.peak_allocated_bytes

    changes = changes_of(events, timeline, range(len(events)))
    held = largest_holders(changes, len(events), most=len(events))["held"]
    assert [sum(size for _, size, _ in holders) for holders in held] == list(timeline.allocated_bytes)

    segments = snapshot(events, conf)["segments"]
    last = (
        (timeline.reserved_bytes[-1], timeline.allocated_bytes[-1], timeline.active_bytes[-1]) if events else (0, 0, 0)
    )
    assert last == tuple(
        sum(each[name] for each in segments) for name in ("total_size", "allocated_size", "active_size")
    )

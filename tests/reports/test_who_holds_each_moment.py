"""Who holds memory at each moment: to the byte, layers that do the same together."""

from __future__ import annotations

from planner.allocator.replay import replay
from planner.events import Category, Event
from planner.report.attribution import HolderKey, attribute
from planner.report.class_timeline import Held, holders_at, largest_at


def test_at_every_event_the_holders_are_all_that_is_allocated(training: list[Event]) -> None:
    timeline = replay(training)
    found = holders_at(training, timeline, range(len(training)))

    assert [sum(each.bytes for each in held) for held in found.held] == list(timeline.allocated_bytes)


def test_the_peak_has_the_holders_of_the_attribution_with_its_layers_as_one(training: list[Event]) -> None:
    timeline = replay(training)
    found = holders_at(training, timeline, [timeline.peak_allocated_index])

    (held,) = found.held
    assert [(found.holders[each.holder].category, each.bytes, each.count) for each in held] == [
        (Category.ACTIVATION, 4096, 2), (Category.TEMPORARY, 3072, 1),
        (Category.PARAMETER, 2048, 2), (Category.OPTIMIZER_STATE, 2048, 2),
    ]  # fmt: skip
    assert [found.holders[each.holder].module for each in held][:2] == ["layers.*", "layers.*"]
    assert sum(each.bytes for each in held) == sum(attribute(training, timeline).at_peak.values())


def test_the_largest_come_first_and_what_was_given_up_is_gone() -> None:
    small, large = (HolderKey(Category.OTHER, name, "", (), "") for name in ("small", "large"))
    changes = [(0, small, 1), (1, large, 5), (2, small, 2), (5, large, -5)]

    found = largest_at(changes, [0, 3, 6], most=1)

    assert found.holders == (small, large)
    assert found.held == ((Held(0, 1, 1),), (Held(1, 5, 1),), (Held(0, 3, 2),))

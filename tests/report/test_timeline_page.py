"""The page of memory over time: complete in itself, and true to the timeline."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.replay import replay
from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.report.attribution import HolderKey, state_rank_class
from planner.report.class_timeline import ClassTimeline, Places, largest_holders, timeline_to_json
from planner.report.html_pages import render_page
from planner.report.statement import OutsideAllocator, Plan
from planner.report.style import STACKED


def _traced(events: list[Event]) -> ClassTimeline:
    timeline = replay(events)
    statement = state_rank_class(
        representative=0, ranks="0-7", coordinates={}, events=events, unlimited=timeline, capped=timeline,
        outside=OutsideAllocator(cuda_context_bytes=700), interval=lambda device: (device, device),
        capacity_bytes=4_000_000,
    )  # fmt: skip
    return ClassTimeline(statement, events, timeline)


def _page(plan: Plan, events: list[Event]) -> str:
    traced = _traced(events)
    return render_page(replace(plan, rank_classes=(traced.statement,)), [traced])


def _data(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_the_page_asks_nothing_from_anywhere(plan: Callable[..., Plan], training: list[Event]) -> None:
    page = _page(plan(), training).replace("http://www.w3.org/2000/svg", "a name, from where nothing is loaded")

    assert not re.findall(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(|\bfetch\(|\bimport\b", page)
    assert "default-src 'none'" in page
    assert "{{" not in page


def test_the_embedded_data_are_the_statement(plan: Callable[..., Plan], training: list[Event]) -> None:
    (shown,) = _data(_page(plan(), training))["classes"]

    assert shown["events"] == len(training)
    assert shown["peak"] == {
        "event": replay(training).peak_allocated_index,
        "phase": "forward",
        "iteration": 2,
        "allocated_bytes": 11264,
        "reserved_bytes": 2 * 2**20,
    }
    assert [each["phase"] for each in shown["phases"]][:3] == ["load", "forward", "backward"]
    assert shown["holders"][0]["op"] == "aten.mul"
    assert sum(sizes[shown["peak"]["event"]] for sizes in shown["allocated_bytes"].values()) == 11264


def test_what_stays_longest_is_stacked_lowest(plan: Callable[..., Plan], training: list[Event]) -> None:
    (shown,) = _data(_page(plan(), training))["classes"]

    assert list(shown["allocated_bytes"]) == ["parameter", "optimizer_state", "gradient", "activation", "temporary"]
    assert set(STACKED) == set(Category)


def test_a_module_named_like_markup_stays_text(plan: Callable[..., Plan]) -> None:
    named = replace(plan(), job={"metadata": {"name": "</title><script>alert(1)</script>"}})
    events: list[Event] = [Alloc(1, 512), Role(1, Category.PARAMETER, "</script><b>")]

    page = _page(named, events)

    assert "<script>alert" not in page
    assert _data(page)["classes"][0]["holders"][0]["module"] == "</script><b>"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to read the script with")
def test_the_script_of_the_page_is_valid(plan: Callable[..., Plan], training: list[Event], tmp_path: Path) -> None:
    script = _page(plan(), training).rpartition("<script>")[2].partition("</script>")[0]
    (tmp_path / "page.js").write_text(script)

    assert subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=False).returncode == 0


@pytest.mark.parametrize("points", [1200, 5])
def test_categories_and_holders_add_up_to_the_allocated_bytes_and_the_peak_is_kept(
    training: list[Event], points: int
) -> None:
    timeline = replay(training)

    drawn = timeline_to_json(_traced(training), points)

    allocated = [timeline.allocated_bytes[moment] for moment in drawn["at"]]
    assert len(drawn["at"]) == min(points, len(training))
    assert timeline.peak_allocated_index in drawn["at"]
    assert [sum(sizes) for sizes in zip(*drawn["allocated_bytes"].values(), strict=True)] == allocated
    assert [sum(size for _, size, _ in held) for held in drawn["held"]] == allocated
    assert drawn["reserved_bytes"] == [timeline.reserved_bytes[moment] for moment in drawn["at"]]


def test_a_new_role_moves_bytes_from_one_category_to_the_other() -> None:
    events: list[Event] = [
        Mark(Phase.BACKWARD, 1), Alloc(1, 512), Role(1, Category.GRADIENT), Alloc(2, 1024), Free(2),
        Role(1, Category.BUCKET),
    ]  # fmt: skip

    assert timeline_to_json(_traced(events))["allocated_bytes"] == {
        "bucket": [0, 0, 0, 0, 512, 512],
        "gradient": [0, 512, 512, 512, 0, 0],
        "temporary": [0, 0, 0, 1024, 0, 0],
    }


def test_layers_that_do_the_same_are_one_holder(training: list[Event]) -> None:
    drawn = timeline_to_json(_traced(training))

    held = drawn["held"][drawn["peak"]["event"]]
    who = [(drawn["who"][holder]["category"], drawn["who"][holder]["module"]) for holder, _, _ in held]
    assert who[:2] == [("activation", "layers.*"), ("temporary", "layers.*")]
    assert [(size, count) for _, size, count in held] == [(4096, 2), (3072, 1), (2048, 2), (2048, 2)]


def test_the_largest_holders_come_first_and_what_was_freed_is_gone() -> None:
    small, large = (HolderKey(Category.OTHER, name, "", (), "") for name in ("small", "large"))
    changes = [(0, small, 1), (1, large, 5), (1, small, 2), (2, large, -5)]

    found = largest_holders(changes, 3, most=1)

    assert [who["module"] for who in found["who"]] == ["small", "large"]
    assert found["held"] == [[[0, 1, 1]], [[1, 5, 1]], [[0, 3, 2]]]


def test_places_are_shares_of_the_events_where_no_phase_is_narrow() -> None:
    places = Places(list(range(100)), [1] * 50 + [2] * 50, [(0, 50), (50, 100)])

    assert [places.of(event) for event in (0, 25, 50, 75, 100)] == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.01)


def test_a_phase_of_few_events_and_its_peak_are_wide_enough_to_be_seen() -> None:
    at = list(range(0, 10_000, 10))
    allocated = [10 if moment < 9_900 else 12 for moment in at]
    allocated[995] = 100  # at event 9,950, for ten events of 10,000
    places = Places(at, allocated, [(0, 9_900), (9_900, 10_000)])

    phase = places.of(10_000) - places.of(9_900)
    peak = places.of(9_960) - places.of(9_950)
    assert 0.03 < phase < 0.06
    assert peak == pytest.approx(0.01, abs=0.001)
    assert [places.of(event) for event in at] == sorted(places.of(event) for event in at)


def test_the_phases_and_moments_of_a_page_lie_where_the_places_say(
    plan: Callable[..., Plan], training: list[Event]
) -> None:
    (shown,) = _data(_page(plan(), training))["classes"]

    assert [each["left"] for each in shown["phases"]] == [shown["places"][each["first"]] for each in shown["phases"]]
    assert [each["right"] for each in shown["phases"]] == [*(each["left"] for each in shown["phases"][1:]), 1]
    assert shown["places"] == sorted(shown["places"])

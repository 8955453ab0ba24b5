"""The plan contract: keys, their order, and plans that come back from a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from planner.allocator.replay import replay
from planner.errors import PlannerError
from planner.events import Category, Event, Phase
from planner.report.attribution import state_rank_class
from planner.report.statement import OutsideAllocator, Plan, Verdict, from_json, to_json
from planner.verdict import decide

KEYS = {
    "": "schema plan_id trace_id verdict calibrated job gpu nodes gpus_per_node allocator_conf rank_classes advice"
    " provenance notes sources seconds",
    "rank_classes": "representative ranks coordinates peak capacity_bytes headroom_bytes verdict cache_releases "
    "at_peak phases outside_allocator holders kind",
    "kind": "compiled program traits several_ranks",
    "peak": "phase iteration allocated_bytes reserved_bytes device_bytes interval_bytes",
    "at_peak": "parameter gradient bucket optimizer_state activation temporary workspace input communication other",
    "phases": "phase iteration peak_allocated_bytes peak_reserved_bytes end_allocated_bytes",
    "outside_allocator": "cuda_context_bytes nccl_bytes",
    "holders": "bytes category module op shape dtype count",
    "advice": "change device_bytes verdict",
    "provenance": "planner torch allocator_rules catalog calibration",
    "seconds": "trace replay total",
}


def test_the_keys_of_the_plan_are_the_contract(plan: Callable[..., Plan]) -> None:
    document = to_json(plan(Verdict.EXCEEDS))
    first = document["rank_classes"][0]
    found = {
        "": document,
        "rank_classes": first,
        **{name: first[name] for name in ("peak", "at_peak", "outside_allocator", "kind")},
        **{name: first[name][0] for name in ("phases", "holders")},
        "advice": document["advice"][0],
        "provenance": document["provenance"],
        "seconds": document["seconds"],
    }

    assert {name: " ".join(part) for name, part in found.items()} == KEYS
    assert document["schema"] == "planner.plan/2"


def test_every_size_is_a_whole_number_of_bytes(plan: Callable[..., Plan]) -> None:
    def sizes(value: Any, key: str = "") -> list[Any]:
        if isinstance(value, dict):
            return [size for name, each in value.items() for size in sizes(each, name)]
        if isinstance(value, list) and key != "interval_bytes":
            return [size for each in value for size in sizes(each)]
        if key == "interval_bytes":
            return list(value)
        return [value] if key == "bytes" or key.endswith("_bytes") else []

    found = sizes(to_json(plan(Verdict.TIGHT)))
    assert len(found) > 60
    assert {type(size) for size in found} == {int}


def test_at_peak_sums_to_the_peak_and_headroom_is_what_is_left(plan: Callable[..., Plan]) -> None:
    (statement,) = to_json(plan())["rank_classes"]

    assert sum(statement["at_peak"].values()) == statement["peak"]["allocated_bytes"]
    assert statement["headroom_bytes"] == statement["capacity_bytes"] - statement["peak"]["device_bytes"]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_stored_plan_comes_back_as_it_was(plan: Callable[..., Plan], verdict: Verdict) -> None:
    original = plan(verdict)

    assert from_json(json.loads(json.dumps(to_json(original)))) == original


def test_a_plan_of_an_earlier_planner_is_read(plan: Callable[..., Plan]) -> None:
    now = to_json(plan())
    of_spec = {key: value for key, value in now.items() if key not in ("gpu", "nodes", "gpus_per_node")}

    assert from_json({**of_spec, "schema": "planner.plan/1"}) == from_json(now)
    assert from_json({**now, "schema": "planner.run/1"}) == from_json(now)


def test_another_schema_is_refused(plan: Callable[..., Plan]) -> None:
    with pytest.raises(PlannerError, match=r"schema: a document of schema 'planner.plan/3' is not a plan"):
        from_json({**to_json(plan()), "schema": "planner.plan/3"})


def test_a_plan_that_lacks_a_key_is_refused(plan: Callable[..., Plan]) -> None:
    document = to_json(plan())
    del document["rank_classes"][0]["peak"]

    with pytest.raises(PlannerError, match=r"plan.rank_classes\[0\]: peak is missing"):
        from_json(document)


def test_a_rank_that_runs_out_of_memory_even_after_cache_releases_exceeds(training: list[Event]) -> None:
    runs_out = replay(training, capacity_bytes=1).out_of_memory is not None
    assert decide(runs_out=runs_out, highest_bytes=10, capacity_bytes=100) is Verdict.EXCEEDS


def test_a_rank_is_tight_if_it_needs_cache_releases_or_the_interval_reaches_beyond() -> None:
    assert decide(runs_out=False, highest_bytes=10, capacity_bytes=100, cache_releases=1) is Verdict.TIGHT
    assert decide(runs_out=False, highest_bytes=101, capacity_bytes=100) is Verdict.TIGHT
    assert decide(runs_out=False, highest_bytes=100, capacity_bytes=100) is Verdict.FITS


def _state(training: list[Event], unlimited: Any, capped: Any) -> Any:
    return state_rank_class(
        representative=0,
        ranks="0-7",
        coordinates={"dp_replicate": 0},
        events=training,
        unlimited=unlimited,
        capped=capped,
        outside=OutsideAllocator(cuda_context_bytes=700, nccl_bytes=300),
        interval=lambda device: (device - 10, device + 10),
        capacity_bytes=3_000_000,
    )


def test_a_rank_class_is_stated_from_its_events_and_replays(
    training: list[Event],
) -> None:
    statement = _state(training, replay(training), replay(training))

    peak = statement.peak
    assert (peak.phase, peak.iteration, peak.allocated_bytes) == (Phase.FORWARD, 2, 11264)
    assert peak.reserved_bytes == 2 * 2**20
    assert peak.device_bytes == 2 * 2**20 + 1000
    assert peak.interval_bytes == (2 * 2**20 + 990, 2 * 2**20 + 1010)
    assert sum(statement.at_peak.values()) == peak.allocated_bytes
    assert statement.at_peak[Category.PARAMETER] == 2048
    assert statement.verdict is Verdict.FITS
    assert statement.headroom_bytes == 3_000_000 - peak.device_bytes


def test_a_class_that_exceeds_is_stated_as_it_would_have_been_without_a_limit(training: list[Event]) -> None:
    capped = replay(training, capacity_bytes=1)

    statement = _state(training, replay(training), capped)

    assert (statement.verdict, statement.peak.allocated_bytes) == (Verdict.EXCEEDS, 11264)

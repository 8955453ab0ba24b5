"""The levels of the tracing processes are those told last, and workers that are lost do not count as busy."""

from __future__ import annotations

from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.scheduling.worker_pool import publish_levels


def test_levels_are_as_they_are_now(history: History) -> None:
    counters = Counters(history.totals)
    publish_levels(counters, {"workers": 4, "busy": 3, "waiting": 2})
    publish_levels(counters, {"workers": 3, "busy": 5, "waiting": 1})
    counters.flush()

    assert history.totals.figures().levels == {
        ("planner_trace_workers", (("state", "busy"),)): 3,
        ("planner_trace_workers", (("state", "idle"),)): 0,
        ("planner_trace_waiting_jobs", ()): 1,
    }

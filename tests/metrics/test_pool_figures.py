"""What the tracing processes did is counted once, however often it is told, and however often their keeper restarts."""

from __future__ import annotations

import asyncio
from typing import Any

from planner.service.history.counters import Counters, SharedFigures
from planner.service.history.store import History
from planner.service.scheduling.worker_pool import PoolFigures

STATE = {
    "workers": 4, "busy": 3, "waiting": 2, "traced_total": 10, "retried_total": 1, "killed_time_total": 2,
    "killed_memory_total": 0, "killed_abandoned_total": 0, "deduplicated_total": 5, "refused_busy_total": 6,
}  # fmt: skip
LATER = {**STATE, "workers": 3, "busy": 0, "waiting": 0, "traced_total": 12, "killed_memory_total": 1}


def test_levels_are_as_they_are_now_and_totals_grow_by_what_is_new(history: History) -> None:
    counters = Counters(history.totals)
    pool = PoolFigures(counters)
    for state in (STATE, STATE, LATER):
        pool.publish(state)
        counters.flush()

    assert history.totals.figures() == SharedFigures(
        totals={
            ("planner_jobs_traced_total", ()): 12,
            ("planner_jobs_joined_total", ()): 5,
            ("planner_jobs_refused_total", ()): 6,
            ("planner_trace_retries_total", ()): 1,
            ("planner_trace_workers_killed_total", (("reason", "time"),)): 2,
            ("planner_trace_workers_killed_total", (("reason", "memory"),)): 1,
        },
        levels={
            ("planner_trace_workers", (("state", "busy"),)): 0,
            ("planner_trace_workers", (("state", "idle"),)): 3,
            ("planner_trace_waiting_jobs", ()): 0,
        },
        writers=1,
    )


def test_a_keeper_that_starts_anew_goes_on_counting(history: History, clock: Any) -> None:
    for _ in range(2):
        counters = Counters(history.totals)
        PoolFigures(counters).publish(STATE)
        counters.flush()
        clock.passes(seconds=31)  # the one before was killed: it said no good-bye
    PoolFigures(counters).publish({**STATE, "traced_total": 0})
    counters.flush()

    found = history.totals.figures()
    assert found.totals["planner_jobs_traced_total", ()] == 20
    assert found.levels["planner_trace_workers", (("state", "busy"),)] == 3


def test_it_is_told_again_and_again(history: History) -> None:
    counters = Counters(history.totals)
    states = iter([STATE, LATER])

    async def tell() -> None:
        told = asyncio.Event()

        def state() -> dict[str, int]:
            following = next(states, None)
            if following is None:
                told.set()
            return following or LATER

        telling = asyncio.create_task(PoolFigures(counters).keep_publishing(state, every=0.001))
        await told.wait()
        telling.cancel()

    asyncio.run(tell())
    counters.flush()

    assert history.totals.figures().totals["planner_jobs_traced_total", ()] == 12

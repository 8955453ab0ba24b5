"""Publishes the figures of the tracing processes to the counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from planner.history.counters import Counters
from planner.metrics.definitions import (
    JOBS_JOINED,
    JOBS_REFUSED,
    JOBS_TRACED,
    KILL_REASONS,
    TRACE_RETRIES,
    WAITING,
    WORKERS,
    WORKERS_KILLED,
)

_COUNTED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "traced_total": (JOBS_TRACED, {}),
    "deduplicated_total": (JOBS_JOINED, {}),
    "refused_busy_total": (JOBS_REFUSED, {}),
    "retried_total": (TRACE_RETRIES, {}),
    **{f"killed_{reason}_total": (WORKERS_KILLED, {"reason": reason}) for reason in KILL_REASONS},
}


class PoolFigures:
    """Takes over what :meth:`planner.service.plan_scheduler.PlanScheduler.state` says, as often as it is told."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._before: dict[str, int] = {}

    async def keep_publishing(self, state: Callable[[], Mapping[str, int]], every: float = 1.0) -> None:
        """Tell what `state` says, until cancelled."""
        while True:
            self.publish(state())
            await asyncio.sleep(every)

    def publish(self, state: Mapping[str, int]) -> None:
        """Set the levels, and count what came since the last time."""
        busy = min(state["busy"], state["workers"])
        self._counters.set(WORKERS, {"state": "busy"}, busy)
        self._counters.set(WORKERS, {"state": "idle"}, state["workers"] - busy)
        self._counters.set(WAITING, {}, state["waiting"])
        for key, (name, labels) in _COUNTED.items():
            more = state[key] - self._before.get(key, 0)
            if more > 0:
                self._counters.add(name, labels, more)
            self._before[key] = state[key]

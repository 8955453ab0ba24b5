"""Looks up jobs that failed to trace before; a failure holds until the software or the limits change."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from planner.errors import AllocatorConfError, PlannerError, SpecError, TraceError
from planner.history.failure_table import Failure
from planner.history.store import History
from planner.service.orders import Order, RunOrder
from planner.service.service_errors import TraceLimitError
from planner.settings import Settings

LASTING: Mapping[str, type[PlannerError]] = {
    kind.__name__: kind for kind in (TraceLimitError, TraceError, SpecError, AllocatorConfError)
}
"""What the same job would fall into again; a worker that died or a full queue is not among them."""
MOST_CHARACTERS = 16_384
"""Of all texts of a failure together; a longer one is found out anew."""
_log = logging.getLogger("planner.service")


class RememberedFailures:
    """The failures in the history, as they count under these settings. Methods block: they read and write the store."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings, self._history = settings, history

    def find(self, order: Order) -> PlannerError | None:
        """Why the job cannot be traced; None where nobody knows, or it may work under the limits of today."""
        if order.runs_code:
            return None
        try:
            failure = self._history.failures.get(order.trace_id)
        except PlannerError as error:
            _log.warning("it is not known whether %s has failed before: %s", order.trace_id, error.problem)
            return None
        if failure is None or failure.kind not in LASTING or self._may_work_now(failure):
            return None
        return LASTING[failure.kind](
            failure.problem, allowed=failure.allowed, remedy=failure.remedy, place=failure.place
        )

    def remember(self, order: Order | RunOrder, error: PlannerError) -> None:
        """Store the failure if the job would fail so again: not one that brings code, which may be other code then."""
        texts = error.problem, error.allowed, error.remedy, error.place
        if order.runs_code or type(error).__name__ not in LASTING or sum(map(len, texts)) > MOST_CHARACTERS:
            return
        failure = Failure(
            trace_id=order.trace_id,
            kind=type(error).__name__,
            problem=error.problem,
            allowed=error.allowed,
            remedy=error.remedy,
            place=error.place,
            trace_seconds=self._settings.trace_seconds,
            trace_memory_bytes=self._settings.trace_memory_bytes,
        )
        try:
            self._history.failures.put(failure)
        except PlannerError as unstored:
            _log.warning("the failure of %s is not remembered: %s", order.trace_id, unstored.problem)

    def _may_work_now(self, failure: Failure) -> bool:
        """Whether a limit was what it ran into, and one of them is larger today."""
        if failure.kind != TraceLimitError.__name__:
            return False
        now = self._settings
        return now.trace_seconds > failure.trace_seconds or now.trace_memory_bytes > failure.trace_memory_bytes

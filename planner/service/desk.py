"""The desk of a replica: answers from the store what was planned before, and has the rest made."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner import planning
from planner.errors import PlannerError
from planner.history.store import History
from planner.service.calibration_in_use import CalibrationInUse
from planner.service.faults import DeadlineError, FactoryNotAllowedError
from planner.service.ids import Order, order_of
from planner.service.known_plans import KnownPlan, KnownPlans
from planner.service.outcomes import Refused, Tracing
from planner.settings import Settings
from planner.spec.job import Job

_log = logging.getLogger("planner.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A plan as the JSON text of the contract, with the metadata of this request."""

    plan_id: str
    trace_id: str
    text: str
    from_store: bool
    stored: bool = True
    """False: the history could not be reached, so nobody else will find the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The plan is being made, and will be found under this id."""

    plan_id: str
    trace_id: str


class Desk:
    """Plans and checks for one replica; holds nothing but a cache."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        tracing: Tracing,
        calibration: CalibrationInUse,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._history, self._tracing, self._now = settings, history, tracing, now
        self._calibration = calibration
        self._plans = KnownPlans(now=now)

    async def plan(self, job: Job, *, seconds: float | None = None) -> Answered:
        """The plan of the job, from the store or made now.

        Ends, and frees the process that traces for nobody else, after `seconds` (DeadlineError) or if it is cancelled.
        Raises SpecError, TraceError, AllocatorConfError and the faults of this package.
        """
        found = await self._answer(job, seconds, keep=False)
        if isinstance(found, Answered):
            return found
        raise DeadlineError(
            f"the plan was not ready within {seconds:g} s",
            remedy="give it more time, or POST /v1/checks, which goes on in the background",
        )

    async def check(self, job: Job, *, seconds: float | None = None) -> Answered | Pending:
        """As :meth:`plan`; after `seconds` (default: as set) it is pending, goes on, and is stored."""
        return await self._answer(job, self._settings.check_seconds if seconds is None else seconds, keep=True)

    async def _answer(self, job: Job, seconds: float | None, *, keep: bool) -> Answered | Pending:
        began = self._now()
        order, known = await asyncio.to_thread(self._look_up, job)
        if known is not None:
            return _answered(order, known, from_store=True)
        left = None if seconds is None else max(seconds - (self._now() - began), 0.001)
        outcome = await self._tracing.make(order, left, keep)
        if outcome is None:
            return Pending(plan_id=order.plan_id, trace_id=order.trace_id)
        if isinstance(outcome, Refused):
            raise outcome.error
        known = await asyncio.to_thread(KnownPlan.read, outcome.text, order.plan_id)
        if outcome.stored and not order.runs_code:
            self._plans.put(order.plan_id, known)
        return _answered(order, known, from_store=outcome.from_store, stored=outcome.stored)

    def _look_up(self, job: Job) -> tuple[Order, KnownPlan | None]:
        """In a thread: it reads the store, and a job may be large."""
        planning.refuse_unplannable(job)
        self._refuse_code(job)
        order = order_of(job, self._calibration.current())
        return order, None if order.runs_code else self._known(order.plan_id)

    def _refuse_code(self, job: Job) -> None:
        if not job.model.factory:
            return
        if not self._settings.allow_factories:
            raise FactoryNotAllowedError(
                "this service runs no code of its users",
                allowed="model.hf_config or model.decoder",
                remedy="plan it with the command line, or ask the operator to set PLANNER_ALLOW_FACTORIES",
                place="model.factory",
            )
        folder, allowed = job.model.factory_path, self._settings.factory_folder
        if folder and not (allowed and Path(folder).resolve().is_relative_to(Path(allowed).resolve())):
            raise FactoryNotAllowedError(
                f"{folder!r} is no folder in which this service looks for code",
                allowed=allowed or "no folder; modules that are installed",
                remedy="leave it out, or ask the operator to set PLANNER_FACTORY_FOLDER",
                place="model.factory_path",
            )

    def _known(self, plan_id: str) -> KnownPlan | None:
        found = self._plans.get(plan_id)
        if found is not None:
            return found
        try:
            text = self._history.plans.text(plan_id)
            known = None if text is None else KnownPlan.read(text, plan_id)
        except (PlannerError, zlib.error) as error:  # the store does not answer, or what it holds is damaged
            _log.warning("plan %s is made anew: %s", plan_id, error, extra={"plan_id": plan_id})
            return None
        if known is not None:
            self._plans.put(plan_id, known)
        return known


def _answered(order: Order, known: KnownPlan, *, from_store: bool, stored: bool = True) -> Answered:
    return Answered(
        plan_id=order.plan_id,
        trace_id=order.trace_id,
        text=known.text(order.job.metadata),
        from_store=from_store,
        stored=stored,
    )

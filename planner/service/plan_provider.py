"""Provides plans to a replica's endpoints: from the store, or made by the scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from planner.bound.lower_bound import Bound, lower_bound
from planner.errors import PlannerError
from planner.history.store import History
from planner.job.schema import Job
from planner.overhead.outside_of_job import outside_of
from planner.planning import pipeline
from planner.service.calibration_in_use import CalibrationInUse
from planner.service.ids import order_of, run_order_of
from planner.service.known_plans import KnownPlan, KnownPlans
from planner.service.orders import Order, RunRequest
from planner.service.outcomes import PlanMaker, PlanRefused
from planner.service.remembered_failures import RememberedFailures
from planner.service.service_errors import DeadlineError
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.service.user_code import refuse_code
from planner.settings import Settings

_log = logging.getLogger("planner.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """A plan as the JSON text of the contract, with the metadata of this request."""

    plan_id: str
    trace_id: str
    text: str
    from_store: bool
    stored: bool = True
    """False: the history could not be reached, so nobody else will find the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPending:
    """The plan is being made, and will be found under this id."""

    plan_id: str
    trace_id: str


class PlanProvider:
    """Plans and checks for one replica; holds nothing but a cache."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        tracing: PlanMaker,
        calibration: CalibrationInUse,
        now: Callable[[], float] = time.monotonic,
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        self._settings, self._history, self._tracing, self._now = settings, history, tracing, now
        self._calibration, self._torches = calibration, torches
        self._plans = KnownPlans(now=now)
        self._failures = RememberedFailures(settings, history)

    async def plan(self, job: Job, *, seconds: float | None = None) -> PlanAnswer:
        """The plan of the job, from the store or made now.

        Ends, and frees the process that traces for nobody else, after `seconds` (DeadlineError) or if it is cancelled.
        Raises SpecError, TraceError, AllocatorConfError and the faults of this package.
        """
        found = await self._answer(job, seconds, keep=False)
        if isinstance(found, PlanAnswer):
            return found
        raise DeadlineError(
            f"the plan was not ready within {seconds:g} s",
            remedy="give it more time, or POST /v1/checks, which goes on in the background",
        )

    async def run(self, asked: RunRequest, *, seconds: float | None, keep: bool) -> PlanAnswer | PlanPending:
        """The run of a program, made now.

        Ends after `seconds` with DeadlineError or, with `keep`, goes on and is pending. Raises SpecError, ProgramError,
        TraceError and the faults of this package.
        """
        calibration = await asyncio.to_thread(self._calibration.current)
        order = await asyncio.to_thread(run_order_of, asked, calibration, self._settings, self._torches)
        outcome = await self._tracing.make(order, seconds, keep)
        if outcome is None and keep:
            return PlanPending(plan_id=order.plan_id, trace_id=order.trace_id)
        if outcome is None:
            raise DeadlineError(
                f"the program was not run within {seconds:g} s",
                remedy="give it more time, or Prefer: respond-async, with which it goes on",
            )
        if isinstance(outcome, PlanRefused):
            raise outcome.error
        return PlanAnswer(
            plan_id=order.plan_id, trace_id=order.trace_id, text=outcome.text, from_store=False, stored=outcome.stored
        )

    def bound(self, job: Job) -> Bound:
        """What the job takes at least, by the calibration in use; it may read from the database, so: in a thread."""
        known = self._calibration.current().applied_to(job.cluster.gpu.name, job.software.torch)
        return lower_bound(job, outside_bytes=known.correct_outside(outside_of(job)).low_bytes)

    async def check(self, job: Job, *, seconds: float | None = None) -> PlanAnswer | PlanPending:
        """As :meth:`plan`; after `seconds` (default: as set) it is pending, goes on, and is stored."""
        return await self._answer(job, self._settings.check_seconds if seconds is None else seconds, keep=True)

    async def _answer(self, job: Job, seconds: float | None, *, keep: bool) -> PlanAnswer | PlanPending:
        began = self._now()
        order, known = await asyncio.to_thread(self._look_up, job)
        if known is not None:
            return _make_answer(order, known, from_store=True)
        left = None if seconds is None else max(seconds - (self._now() - began), 0.001)
        outcome = await self._tracing.make(order, left, keep)
        if outcome is None:
            return PlanPending(plan_id=order.plan_id, trace_id=order.trace_id)
        if isinstance(outcome, PlanRefused):
            raise outcome.error
        known = await asyncio.to_thread(KnownPlan.read, outcome.text, order.plan_id)
        if outcome.stored and not order.runs_code:
            self._plans.put(order.plan_id, known)
        return _make_answer(order, known, from_store=outcome.from_store, stored=outcome.stored)

    def _look_up(self, job: Job) -> tuple[Order, KnownPlan | None]:
        """In a thread: it reads the store, and a job may be large."""
        pipeline.refuse_unplannable(job)
        refuse_code(job, self._settings)
        order = order_of(job, self._calibration.current(), self._torches)
        known = None if order.runs_code else self._find_plan(order.plan_id)
        if known is None and (failure := self._failures.find(order)) is not None:
            raise failure
        return order, known

    def _find_plan(self, plan_id: str) -> KnownPlan | None:
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


def _make_answer(order: Order, known: KnownPlan, *, from_store: bool, stored: bool = True) -> PlanAnswer:
    return PlanAnswer(
        plan_id=order.plan_id,
        trace_id=order.trace_id,
        text=known.text(order.job.metadata),
        from_store=from_store,
        stored=stored,
    )

"""Provides plans to a replica's endpoints: from memory, from the store, or made by the scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.errors import AllocatorConfError, PlannerError, SpecError, TraceError
from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.overhead import outside_of
from planner.job.schema import Job, Metadata
from planner.planning.planned_classes import refuse_unplannable
from planner.report.statement import PLAN_SCHEMA
from planner.service.errors import DeadlineError, TraceLimitError
from planner.service.history.plan_table import Failure
from planner.service.history.schema import compact_json
from planner.service.history.store import History
from planner.service.orders import (
    Order,
    PlanMaker,
    PlanRefused,
    RunOrder,
    RunRequest,
    order_of,
    refuse_code,
    run_order_of,
)
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """The JSON text of a plan, on both sides of its metadata."""

    head: str
    tail: str

    @classmethod
    def read(cls, text: str, plan_id: str) -> KnownPlan:
        """Raises PlannerError if the text is not that of this plan."""
        try:
            document = json.loads(text)
            metadata = compact_json(document["job"]["metadata"])
            same = document["plan_id"] == plan_id
            right = document["schema"] == PLAN_SCHEMA and same and bool(document["rank_classes"])
        except (ValueError, KeyError, TypeError) as error:
            raise PlannerError(f"the document of plan {plan_id} is damaged: {error}") from error
        # The first of that name is the job's: what stands before it are words of ours.
        head, key, tail = text.partition('"metadata":')
        if not right or not tail.startswith(metadata):
            raise PlannerError(f"the document of plan {plan_id} is not that of the plan")
        return cls(head + key, tail[len(metadata) :])

    @property
    def size(self) -> int:
        return len(self.head) + len(self.tail)

    def text(self, metadata: Metadata) -> str:
        """The plan of a job with these metadata; byte for byte what was stored if that job had the same."""
        return self.head + compact_json(dataclasses.asdict(metadata)) + self.tail


class KnownPlans:
    """The plans used last, for a while and up to a number of characters. Shared by the threads of a replica."""

    def __init__(
        self, *, seconds: float = 60.0, characters: int = 64 * 2**20, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._most, self._now = seconds, characters, now
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, tuple[KnownPlan, float]] = OrderedDict()
        self._characters = 0

    def get(self, plan_id: str) -> KnownPlan | None:
        """After its time a plan is looked up in the store again, which notes its use, or has forgotten it."""
        with self._lock:
            plan, until = self._plans.get(plan_id, (None, 0.0))
            if plan is None:
                return None
            if self._now() >= until:
                self._drop(plan_id)
                return None
            self._plans.move_to_end(plan_id)
            return plan

    def put(self, plan_id: str, plan: KnownPlan) -> None:
        with self._lock:
            self._drop(plan_id)
            self._plans[plan_id] = plan, self._now() + self._seconds
            self._characters += plan.size
            while self._characters > self._most:
                self._drop(next(iter(self._plans)))

    def _drop(self, plan_id: str) -> None:
        plan, _ = self._plans.pop(plan_id, (None, 0.0))
        self._characters -= 0 if plan is None else plan.size


LASTING: Mapping[str, type[PlannerError]] = {
    kind.__name__: kind for kind in (TraceLimitError, TraceError, SpecError, AllocatorConfError)
}
"""What the same job would fall into again; a worker that died or a full queue is not among them."""
MOST_CHARACTERS = 16_384
"""Of all texts of a failure together; a longer one is found out anew."""


class RememberedFailures:
    """The failures in the history, as they count under these settings. Methods block: they read and write the store."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings, self._history = settings, history

    def find(self, order: Order) -> PlannerError | None:
        """Why the job cannot be traced; None where nobody knows, or it may work under the limits of today."""
        if order.runs_code:
            return None
        try:
            failure = self._history.failures.get(order.plan_id)
        except PlannerError as error:
            _log.warning("it is not known whether %s has failed before: %s", order.plan_id, error.problem)
            return None
        if failure is None or failure.kind not in LASTING:
            return None
        now = self._settings
        more = now.trace_seconds > failure.trace_seconds or now.trace_memory_bytes > failure.trace_memory_bytes
        if more and failure.kind == TraceLimitError.__name__:  # a limit was what it ran into, and one is larger today
            return None
        return LASTING[failure.kind](
            failure.problem, allowed=failure.allowed, remedy=failure.remedy, place=failure.place
        )

    def remember(self, order: Order | RunOrder, error: PlannerError) -> None:
        """Store the failure if the job would fail so again: not one that brings code, which may be other code then."""
        kind, parts = type(error).__name__, {"problem": error.problem, **error.parts}
        if order.runs_code or kind not in LASTING or sum(map(len, parts.values())) > MOST_CHARACTERS:
            return
        seconds, memory = self._settings.trace_seconds, self._settings.trace_memory_bytes
        try:
            self._history.failures.put(
                Failure(plan_id=order.plan_id, kind=kind, **parts, trace_seconds=seconds, trace_memory_bytes=memory)
            )
        except PlannerError as unstored:
            _log.warning("the failure of %s is not remembered: %s", order.plan_id, unstored.problem)


LOOK_SECONDS = 2.0
"""A calibration that was learnt is used by every replica within this time."""


class CalibrationInUse:
    """Shared by the threads of a replica."""

    def __init__(self, history: History, now: Callable[[], float] = time.monotonic) -> None:
        self._history, self._now = history, now
        self._lock = threading.Lock()
        self._known = measured_calibration()
        self._known_name = ""
        self._looked = -float("inf")

    def current(self) -> Calibration:
        """The one put last; the last one known if the history does not answer or what it holds cannot be read.

        It may read from the database, so it is not called on an event loop.
        """
        if self._now() - self._looked < LOOK_SECONDS:
            return self._known
        with self._lock:
            if self._now() - self._looked < LOOK_SECONDS:
                return self._known
            try:
                stored = self._history.calibrations.current()
                if stored is not None and stored.calibration_id != self._known_name:
                    self._known = interval.from_json(stored.document)
                    self._known_name = stored.calibration_id
            except PlannerError as error:
                _log.warning("calibration %s stays in use: %s", self._known.id, error)
            self._looked = self._now()
        return self._known


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
        answer = await self._answer(job, seconds, keep=False)
        if isinstance(answer, PlanAnswer):
            return answer
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
        from_store, stored = True, True
        if known is None:
            left = None if seconds is None else max(seconds - (self._now() - began), 0.001)
            outcome = await self._tracing.make(order, left, keep)
            if outcome is None:
                return PlanPending(plan_id=order.plan_id, trace_id=order.trace_id)
            if isinstance(outcome, PlanRefused):
                raise outcome.error
            known = await asyncio.to_thread(KnownPlan.read, outcome.text, order.plan_id)
            from_store, stored = outcome.from_store, outcome.stored
            if stored and not order.runs_code:
                self._plans.put(order.plan_id, known)
        return PlanAnswer(
            plan_id=order.plan_id,
            trace_id=order.trace_id,
            text=known.text(order.job.metadata),
            from_store=from_store,
            stored=stored,
        )

    def _look_up(self, job: Job) -> tuple[Order, KnownPlan | None]:
        """In a thread: it reads the store, and a job may be large."""
        refuse_unplannable(job)
        refuse_code(job, self._settings)
        order = order_of(job, self._calibration.current(), self._torches)
        plan_id = order.plan_id
        known = None if order.runs_code else self._plans.get(plan_id)
        if known is not None or order.runs_code:
            return order, known
        try:
            text = self._history.plans.text(plan_id)
            if text is not None:
                known = KnownPlan.read(text, plan_id)
                self._plans.put(plan_id, known)
        except (PlannerError, zlib.error) as error:  # the store does not answer, or what it holds is damaged
            _log.warning("plan %s is made anew: %s", plan_id, error, extra={"plan_id": plan_id})
        if known is None and (failure := self._failures.find(order)) is not None:
            raise failure
        return order, known

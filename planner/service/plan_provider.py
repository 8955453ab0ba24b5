"""Provides plans to a replica's endpoints: from memory, from the store, or made by the scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

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
    PlanMade,
    PlanMaker,
    PlanRefused,
    RunRequest,
    build_order,
    build_run_order,
    refuse_code,
)
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration

_log = logging.getLogger("planner.service")


_MARK = uuid.uuid4().hex
"""Stands for metadata; drawn, so that no text of a job has it."""


@dataclass(frozen=True)
class KnownPlan:
    """The JSON text of a plan, and the metadata in it."""

    text: str
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, text: str, plan_id: str) -> KnownPlan:
        try:
            document = json.loads(text)
            metadata = document["job"]["metadata"]
            named = document["schema"] == PLAN_SCHEMA and document["plan_id"] == plan_id
            right = named and bool(document["rank_classes"])
        except (ValueError, KeyError, TypeError) as error:
            raise PlannerError(f"the document of plan {plan_id} is damaged: {error}") from error
        if not right:
            raise PlannerError(f"the document of plan {plan_id} is not that of the plan")
        return cls(text, metadata)

    def with_metadata(self, metadata: Metadata) -> str:
        """The plan of a job with these metadata; byte for byte what was stored if that job had the same."""
        asked = dataclasses.asdict(metadata)
        if asked == self.metadata:
            return self.text
        before, after = self._around_metadata
        return before + compact_json(asked) + after

    @cached_property
    def _around_metadata(self) -> tuple[str, str]:
        """Written once: the same job comes under many names, and its plan may have megabytes."""
        document = json.loads(self.text)
        document["job"]["metadata"] = _MARK
        before, _, after = compact_json(document).partition(f'"{_MARK}"')
        return before, after


KNOWN_SECONDS = 60.0
MOST_KNOWN_CHARACTERS = 64 * 2**20


class KnownPlans:
    """The plans used last, for a while and up to a number of characters. Shared by the threads of a replica."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, tuple[KnownPlan, float]] = OrderedDict()

    def get(self, plan_id: str) -> KnownPlan | None:
        """After its time a plan is looked up in the store again, which notes its use, or has forgotten it."""
        with self._lock:
            plan, until = self._plans.pop(plan_id, (None, 0.0))
            if plan is None or time.monotonic() >= until:
                return None
            self._plans[plan_id] = plan, until
            return plan

    def put(self, plan_id: str, plan: KnownPlan) -> None:
        with self._lock:
            self._plans[plan_id] = plan, time.monotonic() + KNOWN_SECONDS
            self._plans.move_to_end(plan_id)
            characters = sum(len(known.text) for known, _ in self._plans.values())
            while characters > MOST_KNOWN_CHARACTERS:
                _, (oldest, _) = self._plans.popitem(last=False)
                characters -= len(oldest.text)


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

    def remember(self, order: Order, error: PlannerError) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """A plan with the metadata of this request, or under which id it will be found."""

    plan_id: str
    trace_id: str
    text: str = ""
    """The JSON text of the contract; empty while the plan is being made."""
    from_store: bool = False
    stored: bool = True

    @property
    def is_pending(self) -> bool:
        return not self.text


class PlanProvider:
    def __init__(
        self,
        settings: Settings,
        history: History,
        tracing: PlanMaker,
        calibration: CalibrationInUse,
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        self._settings, self._history, self._tracing = settings, history, tracing
        self._calibration, self._torches = calibration, torches
        self._plans = KnownPlans()
        self._failures = RememberedFailures(settings, history)

    async def plan(self, asked: Job | RunRequest, *, seconds: float | None = None, keep: bool = False) -> PlanAnswer:
        """The plan of a job, from the store or made now; of a program, which is run now.

        With `keep` it is pending after `seconds`, goes on, and is stored. Else it ends then with DeadlineError, or if
        it is cancelled, and frees the process that traces for nobody else. Raises SpecError, TraceError,
        AllocatorConfError, ProgramError and the errors of this package.
        """
        if isinstance(asked, RunRequest):
            calibration = await asyncio.to_thread(self._calibration.current)
            key = self._history.id_key
            order = await asyncio.to_thread(build_run_order, asked, calibration, self._settings, key, self._torches)
            return await self._make(order, seconds, keep)
        order, text = await asyncio.to_thread(self._look_up, asked)
        if text is not None:
            return PlanAnswer(plan_id=order.plan_id, trace_id=order.trace_id, text=text, from_store=True)
        answer = await self._make(order, seconds, keep)
        if answer.is_pending:
            return answer

        def take_over() -> str:
            plan = KnownPlan.read(answer.text, order.plan_id)
            if answer.stored and not order.runs_code:
                self._plans.put(order.plan_id, plan)
            return plan.with_metadata(asked.metadata)

        return dataclasses.replace(answer, text=await asyncio.to_thread(take_over))

    async def end_run(self, plan_id: str) -> bool:
        """End the run of this id, with its processes, if it is being made or waits; whether there was one."""
        return await self._tracing.end_run(plan_id)

    def bound(self, job: Job) -> Bound:
        """What the job takes at least, by the calibration in use; it may read from the database, so: in a thread."""
        known = self._calibration.current().applied_to(job.cluster.gpu.name, job.software.torch)
        return lower_bound(job, outside_bytes=known.correct_outside(outside_of(job)).low_bytes)

    async def _make(self, order: Order, seconds: float | None, keep: bool) -> PlanAnswer:
        outcome = await self._tracing.make(order, seconds, keep)
        if isinstance(outcome, PlanRefused):
            raise outcome.error
        if outcome is None and not keep:
            what = "the program was not run" if order.program is not None else "the plan was not ready"
            raise DeadlineError(
                f"{what} within {seconds:g} s",
                remedy="give it more time, or Prefer: respond-async, with which it goes on",
            )
        made = outcome or PlanMade(text="")
        return PlanAnswer(plan_id=order.plan_id, trace_id=order.trace_id, text=made.text, stored=made.stored)

    def _look_up(self, job: Job) -> tuple[Order, str | None]:
        """In a thread: it reads the store, and a job may be large."""
        refuse_unplannable(job)
        refuse_code(job, self._settings)
        order = build_order(job, self._calibration.current(), self._history.id_key, self._torches)
        if order.runs_code:
            return order, None
        plan_id = order.plan_id
        known = self._plans.get(plan_id)
        try:
            if known is None and (stored := self._history.plans.text(plan_id)) is not None:
                known = KnownPlan.read(stored, plan_id)
                self._plans.put(plan_id, known)
        except (PlannerError, zlib.error) as error:  # the store does not answer, or what it holds is damaged
            _log.warning("plan %s is made anew: %s", plan_id, error, extra={"plan_id": plan_id})
        if known is not None:
            return order, known.with_metadata(job.metadata)
        if (failure := self._failures.find(order)) is not None:
            raise failure
        return order, None

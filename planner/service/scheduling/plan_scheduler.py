"""Schedules the making of plans for all replicas: equal jobs once, in a bounded queue, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from planner.errors import PlannerError
from planner.job.layout import Mesh, rank_classes
from planner.report.program_statement import ProgramStatement
from planner.report.statement import Plan
from planner.runtime.limits import Limit, LimitExceededError
from planner.service.errors import BusyError, TraceLimitError, WorkerLostError, trace_limit_error
from planner.service.history.plan_table import document_text
from planner.service.history.store import History, Retention
from planner.service.orders import Order, Outcome, PlanMade, PlanRefused, RunOrder, WorkerResult
from planner.service.plan_provider import KnownPlan, RememberedFailures
from planner.service.scheduling.search_runner import SearchGroups
from planner.service.scheduling.worker_pool import Lease, Workers
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings

HELD_SECONDS = 600.0
"""How long an answer is kept that nobody waited for and that the store does not have."""
FORGET_SECONDS = 600.0
MOST_RETRY_SECONDS = 60
CODE_START_SECONDS = 30.0
"""Beyond the limit of a trace, where a process of its own has to start and to be ended for it."""
_log = logging.getLogger("planner.service")


@dataclass(slots=True, eq=False)
class _Entry:
    """A plan in the making. `outcome` may be there before the work is: a trace is stored after its plan is told."""

    order: Order | RunOrder
    keep: bool
    outcome: asyncio.Future[Outcome]
    task: asyncio.Task[None] | None = None
    waiting: int = 0
    began: float = 0.0
    started: bool = False


@dataclass(slots=True)
class _Counts:
    traced: int = 0
    deduplicated: int = 0
    refused_busy: int = 0
    killed_time: int = 0
    killed_memory: int = 0
    mean_seconds: float = 5.0


class PlanScheduler:
    """Lives on one event loop; a cluster has one."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        workers: Workers,
        now: Callable[[], float] = time.monotonic,
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        self._settings, self._history, self._workers, self._now = settings, history, workers, now
        self._torches = torches
        self._entries: dict[str, _Entry] = {}
        self._held: dict[str, tuple[float, Outcome]] = {}
        self._counts = _Counts()
        self._failures = RememberedFailures(settings, history)
        self._forgetting: asyncio.Task[None] | None = None
        self._ending = False
        self.groups = SearchGroups(workers, settings.trace_seconds, torches)
        """What the same workers plan for searches."""

    def start(self) -> None:
        """Hire the workers, and forget now and then what need not be kept."""
        self._workers.start()
        self._forgetting = asyncio.create_task(self._forget_now_and_then())

    async def make(self, order: Order | RunOrder, seconds: float | None, keep: bool) -> Outcome | None:
        """As :class:`planner.service.orders.PlanMaker` says."""
        if self._ending:
            return PlanRefused(_ending())
        held = self._taken_from_held(order.plan_id)
        if held is not None:
            return held
        entry = self._entries.get(order.plan_id)
        if entry is not None:
            self._counts.deduplicated += 1
        elif len(self._entries) >= self._workers.count + self._settings.trace_queue:
            self._counts.refused_busy += 1
            return PlanRefused(self._busy())
        else:
            entry = self._begin(order)
        return await self._wait(entry, seconds, keep)

    @property
    def entry_count(self) -> int:
        """Plans that are not made yet, or whose traces are not stored yet."""
        return len(self._entries)

    def state(self) -> dict[str, int]:
        """Figures for metrics: how many there are now, and how many there were since the start."""
        waiting = sum(not each.started for each in self._entries.values())
        return {
            "workers": self._workers.alive,
            "busy": self._workers.busy,
            "waiting": waiting,
            "traced_total": self._counts.traced,
            "retried_total": self._workers.retried,
            "killed_time_total": self._counts.killed_time,
            "killed_memory_total": self._counts.killed_memory,
            "killed_abandoned_total": self._workers.abandoned,
            "deduplicated_total": self._counts.deduplicated,
            "refused_busy_total": self._counts.refused_busy,
        }

    async def finish(self, seconds: float | None = None) -> None:
        """Wait for what is being made, at most so long; tell the rest to come again, and end the workers."""
        self._ending = True
        self.groups.end()
        if tasks := [entry.task for entry in self._entries.values() if entry.task is not None]:
            await asyncio.wait(tasks, timeout=seconds)
        for entry in list(self._entries.values()):
            self._tell(entry, PlanRefused(_ending()))
            self._abandon(entry)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._workers.close()

    def _begin(self, order: Order | RunOrder) -> _Entry:
        entry = _Entry(order, keep=False, outcome=asyncio.get_running_loop().create_future(), began=self._now())
        same_trace = [each for each in self._entries.values() if each.order.trace_id == order.trace_id]
        self._entries[order.plan_id] = entry
        entry.task = asyncio.create_task(self._work(entry, same_trace), name=order.plan_id)
        return entry

    async def _wait(self, entry: _Entry, seconds: float | None, keep: bool) -> Outcome | None:
        entry.waiting += 1
        entry.keep = entry.keep or keep
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(entry.outcome)
        except TimeoutError:
            return None
        finally:
            entry.waiting -= 1
            if not entry.waiting and not entry.keep and not entry.outcome.done():
                self._abandon(entry)

    def _abandon(self, entry: _Entry) -> None:
        if self._entries.get(entry.order.plan_id) is entry:
            del self._entries[entry.order.plan_id]
        if entry.task is not None:
            entry.task.cancel()

    async def _work(self, entry: _Entry, same_trace: list[_Entry]) -> None:
        """Never raises but when it is cancelled: whatever happens is the outcome."""
        try:
            for other in same_trace:  # under another calibration: then the trace is in the store
                if other.task is not None:
                    await asyncio.wait({other.task})
            if isinstance(entry.order, RunOrder):
                torch = self._torches.loaded_for(entry.order.request.torch)
                await self._workers.run(lambda lease: self._run_program(lease, entry), torch=torch)
            else:
                await self._make_plan(entry, entry.order)
        except PlannerError as error:
            self._tell(entry, PlanRefused(error))
        except asyncio.CancelledError:
            entry.outcome.cancel()
            raise
        except Exception as fault:
            _log.exception("plan %s failed", entry.order.plan_id, extra={"plan_id": entry.order.plan_id})
            if not entry.outcome.done():
                entry.outcome.set_exception(fault)
                entry.outcome.exception()  # there may be nobody to whom it is news
        finally:
            await self._remember_failure(entry)
            if self._entries.get(entry.order.plan_id) is entry:
                del self._entries[entry.order.plan_id]

    async def _remember_failure(self, entry: _Entry) -> None:
        """While the entry is still there: whoever asks now waits for it, and whoever comes later finds it stored."""
        if not entry.outcome.done() or entry.outcome.cancelled() or entry.outcome.exception() is not None:
            return
        outcome = entry.outcome.result()
        if isinstance(outcome, PlanRefused):
            await asyncio.shield(asyncio.to_thread(self._failures.remember, entry.order, outcome.error))

    def _tell(self, entry: _Entry, outcome: Outcome) -> None:
        if entry.outcome.done():
            return
        entry.outcome.set_result(outcome)
        if not entry.waiting and self._is_nowhere_else(entry.order, outcome):
            self._held[entry.order.plan_id] = self._now() + HELD_SECONDS, outcome

    def _is_nowhere_else(self, order: Order | RunOrder, outcome: Outcome) -> bool:
        if isinstance(outcome, PlanRefused):
            return not isinstance(outcome.error, BusyError | WorkerLostError)
        return order.runs_code or not outcome.stored

    def _taken_from_held(self, plan_id: str) -> Outcome | None:
        now = self._now()
        for name in [name for name, (until, _) in self._held.items() if until < now]:
            del self._held[name]
        return self._held.pop(plan_id, (0.0, None))[1]

    async def _run_program(self, lease: Lease, entry: _Entry) -> None:
        """All of its ranks on one worker, one after the other."""
        assert isinstance(entry.order, RunOrder)
        if entry.outcome.done():  # a worker died after the run was told
            return
        entry.started = True
        self._counts.traced += 1
        found = await lease.call("run", entry.order, seconds=entry.order.seconds)
        await self._store_and_tell_result(entry, found)

    async def _make_plan(self, entry: _Entry, order: Order) -> None:
        if not order.runs_code:
            text, texts = await self._from_store(order)
            if text is not None:
                self._tell(entry, PlanMade(text=text, from_store=True))
                return
            if texts and await self._judge(entry, order, texts):
                return
        representatives = [each.representative for each in rank_classes(Mesh.of(order.job.parallel))]
        self._counts.traced += 1
        if len(representatives) == 1:
            torch = self._torches.loaded_for(order.job.software.torch)
            await self._workers.run(lambda lease: self._plan_in_one_child(lease, entry, order), torch=torch)
            return
        traced = await self._trace_classes(entry, order, representatives)
        await self._judge(entry, order, traced)
        if not order.runs_code:
            await self._store_traces(order, traced)

    async def _plan_in_one_child(self, lease: Lease, entry: _Entry, order: Order) -> None:
        """One rank class: traced, judged and advised in one child, for the trace need not travel."""
        entry.started = True
        if entry.outcome.done():  # a worker died after the plan was told
            return
        found = await lease.call("plan", order, seconds=self._seconds(order))
        await self._store_and_tell_result(entry, found)
        if isinstance(found, WorkerResult) and found.traces and not order.runs_code:
            await self._store_traces(order, found.traces)

    async def _judge(self, entry: _Entry, order: Order, texts: Mapping[int, str]) -> bool:
        torch = self._torches.loaded_for(order.job.software.torch)
        return await self._workers.run(lambda lease: self._judge_on(lease, entry, order, texts), torch=torch)

    async def _judge_on(self, lease: Lease, entry: _Entry, order: Order, texts: Mapping[int, str]) -> bool:
        """Whether the traces could be read."""
        entry.started = True
        if entry.outcome.done():
            return True
        found = await lease.call("judge", order, texts, seconds=self._seconds(order))
        if found is None:
            _log.warning("the stored trace of %s is damaged; traced anew", order.plan_id)
            return False
        await self._store_and_tell_result(entry, found)
        return True

    async def _trace_classes(self, entry: _Entry, order: Order, representatives: list[int]) -> dict[int, str]:
        """Several rank classes: as many at once as there are workers. The first refusal is told at once.

        What a class falls into, because shards do not divide, is traced when its first rank has found that out.
        """
        places = asyncio.Semaphore(self._workers.count)
        torch = self._torches.loaded_for(order.job.software.torch)
        texts: dict[int, str] = {}
        errors: list[PlannerError] = []

        async def work(lease: Lease, rank: int) -> WorkerResult | PlanRefused:
            entry.started = True
            found: WorkerResult | PlanRefused = await lease.call("trace", order.job, rank, seconds=self._seconds(order))
            return found

        async def trace_class(rank: int) -> None:
            async with places:
                if errors:
                    return
                try:
                    found = await self._workers.run(lambda lease: work(lease, rank), torch=torch)
                except PlannerError as error:
                    found = PlanRefused(error)
            if isinstance(found, WorkerResult) and found.exceeded is not None:
                found = PlanRefused(self._limit_error(found.exceeded))
            if isinstance(found, PlanRefused):
                errors.append(found.error)
                self._tell(entry, found)
                return
            texts.update(found.traces)
            await asyncio.gather(*(trace_class(each) for each in found.further))

        await asyncio.gather(*(trace_class(rank) for rank in representatives))
        if errors:
            raise errors[0]
        return texts

    async def _store_and_tell_result(self, entry: _Entry, found: WorkerResult | PlanRefused) -> None:
        """Raises TraceLimitError where a limit was exceeded before there was a plan."""
        if isinstance(found, PlanRefused):
            self._tell(entry, found)
            return
        made = found.plan or found.run
        if found.exceeded is not None:
            error = self._limit_error(found.exceeded)
            if made is None:
                raise error
            _log.warning("plan %s goes without advice: %s", entry.order.plan_id, error.problem)
        if made is not None:
            await self._store_and_tell(entry, made)

    def _limit_error(self, exceeded: LimitExceededError) -> TraceLimitError:
        if exceeded.limit is Limit.SECONDS:
            self._counts.killed_time += 1
        else:
            self._counts.killed_memory += 1
        return trace_limit_error(exceeded)

    async def _store_and_tell(self, entry: _Entry, plan: Plan | ProgramStatement) -> None:
        # Whoever waited may go in this moment: the plan is stored all the same.
        text, stored = await asyncio.shield(asyncio.to_thread(self._store_plan, plan))
        self._counts.mean_seconds += (self._now() - entry.began - self._counts.mean_seconds) / 8
        self._tell(entry, PlanMade(text=text, stored=stored))

    def _store_plan(self, plan: Plan | ProgramStatement) -> tuple[str, bool]:
        text = document_text(plan)
        try:
            self._history.plans.put(plan)
        except PlannerError as error:
            _log.error("plan %s is answered but not stored: %s", plan.plan_id, error, extra={"plan_id": plan.plan_id})
            return text, False
        return text, True

    async def _store_traces(self, order: Order, texts: Mapping[int, str]) -> None:
        try:
            await asyncio.shield(asyncio.to_thread(self._history.traces.put_texts, order.trace_id, texts))
        except PlannerError as error:
            _log.warning("the trace of plan %s is not stored: %s", order.plan_id, error)

    async def _from_store(self, order: Order) -> tuple[str | None, Mapping[int, str]]:
        """The plan, or the traces from which it can be judged; nothing where the store does not answer."""

        def read() -> tuple[str | None, Mapping[int, str]]:
            text = self._history.plans.text(order.plan_id)
            if text is not None:
                with contextlib.suppress(PlannerError):
                    KnownPlan.read(text, order.plan_id)
                    return text, {}
            return None, self._history.traces.texts(order.trace_id)

        try:
            return await asyncio.to_thread(read)
        except (PlannerError, zlib.error) as error:
            _log.warning("nothing is read of plan %s: %s", order.plan_id, error)
            return None, {}

    def _seconds(self, order: Order) -> float:
        return self._settings.trace_seconds + (CODE_START_SECONDS if order.runs_code else 0.0)

    def _busy(self) -> BusyError:
        turns = len(self._entries) / max(self._workers.count, 1)
        return BusyError(
            f"{len(self._entries)} jobs are being planned or wait for it",
            allowed=f"{self._workers.count} at once and {self._settings.trace_queue} that wait",
            remedy="try again later",
            retry_after_seconds=min(max(math.ceil(turns * self._counts.mean_seconds), 1), MOST_RETRY_SECONDS),
        )

    async def _forget_now_and_then(self) -> None:
        keep = Retention(age=timedelta(days=self._settings.retention_days), plans=self._settings.retention_plans)
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            try:
                await asyncio.to_thread(self._history.forget, keep)
            except PlannerError as error:
                _log.warning("nothing is forgotten: %s", error)


def _ending() -> WorkerLostError:
    return WorkerLostError("the service ends", remedy="try again: whoever supervises it starts another")

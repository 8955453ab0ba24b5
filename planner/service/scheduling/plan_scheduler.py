"""Schedules the making of plans for all replicas: equal jobs once, in a bounded queue, nothing lost."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from planner.errors import PlannerError
from planner.job.layout import Mesh, rank_classes
from planner.runtime.limits import Limit
from planner.service.errors import (
    BusyError,
    RunEndedError,
    WorkerLostError,
    trace_limit_error,
)
from planner.service.history.counters import Counters
from planner.service.history.plan_table import document_text
from planner.service.history.store import History, Retention
from planner.service.metrics import JOBS_JOINED, JOBS_REFUSED, JOBS_TRACED, WORKERS_KILLED
from planner.service.orders import Order, Outcome, PlanMade, PlanRefused, WorkerResult
from planner.service.plan_provider import RememberedFailures
from planner.service.scheduling.search_runner import SearchGroups
from planner.service.scheduling.worker_pool import Workers
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings, split_list

HELD_SECONDS = 600.0
"""How long an answer is kept that nobody waited for and that the store does not have."""
FORGET_SECONDS = 600.0
MOST_RETRY_SECONDS = 60
_log = logging.getLogger("planner.service")


@dataclass(slots=True, eq=False)
class _Entry:
    """A plan in the making. `outcome` may be there before the work is: a trace is stored after its plan is told."""

    order: Order
    began: float
    keep: bool = False
    outcome: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: asyncio.Task[None] | None = None
    waiting: int = 0
    started: bool = False

    def start(self) -> None:
        self.started = True


def count_runners(settings: Settings, workers: int) -> tuple[int, int]:
    """How many processes run programs where so many trace specs, and how many of them one tenant may have: with several
    tokens half, so that a tenant whose programs sleep leaves some to the others."""
    if not settings.programs:
        return 0, 0
    is_shared = len({*split_list(settings.code_token_sha256 or settings.token_sha256)}) > 1
    count = max(workers // 2, 2 if is_shared else 1)
    return count, math.ceil(count / 2) if is_shared else count


class PlanScheduler:
    """Lives on one event loop; a cluster has one."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        workers: Workers,
        runners: Workers,
        counters: Counters,
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        """`runners` run programs and nothing else: however many programs there are, none keeps a spec waiting."""
        self._settings, self._history, self._workers, self._runners = settings, history, workers, runners
        self._counters, self._torches = counters, torches
        self._entries: dict[str, _Entry] = {}
        self._held: dict[str, tuple[float, Outcome]] = {}
        self._mean_seconds = 5.0
        self._failures = RememberedFailures(settings, history)
        self._forgetting: asyncio.Task[None] | None = None
        self._ending = False
        self.groups = SearchGroups(workers, settings.trace_seconds, torches)

    def start(self) -> None:
        self._workers.start()
        self._runners.start()
        self._forgetting = asyncio.create_task(self._forget_now_and_then())

    async def make(self, order: Order, seconds: float | None, keep: bool) -> Outcome | None:
        if self._ending:
            return PlanRefused(_ending())
        now = time.monotonic()
        self._held = {name: held for name, held in self._held.items() if held[0] >= now}
        if (held := self._held.pop(order.plan_id, None)) is not None:
            return held[1]
        entry = self._entries.get(order.plan_id)
        if entry is not None:
            self._counters.add(JOBS_JOINED, {})
        elif (full := self._queue_is_full(order)) is not None:
            self._counters.add(JOBS_REFUSED, {})
            return PlanRefused(full)
        else:
            entry = _Entry(order, began=now)
            same_trace = [other for other in self._entries.values() if other.order.trace_id == order.trace_id]
            self._entries[order.plan_id] = entry
            entry.task = asyncio.create_task(self._work(entry, same_trace), name=order.plan_id)
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

    async def end_run(self, plan_id: str) -> bool:
        """End the run of this id, with its processes, if it is being made or waits; whether there was one. Those who
        wait for it are answered."""
        entry = self._entries.get(plan_id)
        if entry is None or entry.order.program is None:
            return False
        self._tell(entry, PlanRefused(RunEndedError("the run was ended by a request", remedy="POST /v1/plans anew")))
        self._abandon(entry)
        return True

    @property
    def entry_count(self) -> int:
        return len(self._entries)

    def levels(self) -> dict[str, int]:
        """How many workers there are, of which so many work, and how many plans wait for one."""
        waiting = sum(not entry.started for entry in self._entries.values())
        pools = self._workers, self._runners
        return {
            "workers": sum(pool.alive for pool in pools),
            "planning": self._workers.alive,
            "busy": sum(pool.busy for pool in pools),
            "waiting": waiting,
        }

    def unready(self) -> PlanRefused | None:
        """Why a job that comes now is not planned soon; None where it is."""
        if not self._workers.alive:
            return PlanRefused(WorkerLostError("no tracing process is ready", remedy="wait; they load PyTorch"))
        waiting = [each for each in self._entries.values() if not each.started and each.order.program is None]
        longest = time.monotonic() - min((each.began for each in waiting), default=math.inf)
        if longest <= self._settings.trace_seconds:
            return None
        return PlanRefused(
            BusyError(
                f"no tracing process is free: {len(waiting)} jobs wait, the first for {longest:.0f} s",
                remedy="raise PLANNER_TRACE_WORKERS, or lower PLANNER_TRACE_SECONDS",
            )
        )

    def _queue_is_full(self, order: Order) -> BusyError | None:
        """Why the order cannot even wait: for all, or for one tenant, who may have as large a part of the queue as of
        the workers."""
        workers = self._workers_for(order)
        tenants = [each.order.tenant for each in self._entries.values() if self._workers_for(each.order) is workers]
        count, places = len(tenants), workers.count + self._settings.trace_queue
        most = max(places * workers.most_of_one // max(workers.count, 1), 1)
        if count < places and tenants.count(order.tenant) < most:
            return None
        of_one = f", of which one token may have {most}" if most < places else ""
        turns = count / max(workers.count, 1)
        return BusyError(
            f"the planning queue is full ({count} jobs)",
            allowed=f"{workers.count} at once and {self._settings.trace_queue} that wait{of_one}",
            remedy="try again later",
            retry_after_seconds=min(max(math.ceil(turns * self._mean_seconds), 1), MOST_RETRY_SECONDS),
        )

    def _workers_for(self, order: Order) -> Workers:
        return self._workers if order.program is None else self._runners

    async def finish(self, seconds: float | None = None) -> None:
        """Wait for plans being made, at most so long; refuse the rest, and end the workers."""
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
        self._runners.close()

    def _abandon(self, entry: _Entry) -> None:
        self._remove(entry)
        if entry.task is not None:
            entry.task.cancel()

    def _remove(self, entry: _Entry) -> None:
        if self._entries.get(entry.order.plan_id) is entry:
            del self._entries[entry.order.plan_id]

    async def _work(self, entry: _Entry, same_trace: list[_Entry]) -> None:
        """Never raises but when it is cancelled: whatever happens is the outcome."""
        try:
            for other in same_trace:  # under another calibration: then the trace is in the store
                if other.task is not None:
                    await asyncio.wait({other.task})
            if entry.order.program is not None:  # all of its ranks on one worker, one after the other
                self._counters.add(JOBS_TRACED, {})
                await self._store_and_tell(entry, await self._call(entry, "run", entry.order))
            else:
                await self._plan(entry, entry.order)
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
            # While the entry is still there: who asks now waits for it, and who comes later finds the failure stored.
            done = entry.outcome.done() and not entry.outcome.cancelled() and entry.outcome.exception() is None
            if done and isinstance(refused := entry.outcome.result(), PlanRefused):
                await asyncio.shield(asyncio.to_thread(self._failures.remember, entry.order, refused.error))
            self._remove(entry)

    def _tell(self, entry: _Entry, outcome: Outcome) -> None:
        if entry.outcome.done():
            return
        entry.outcome.set_result(outcome)
        if isinstance(outcome, PlanRefused):
            nowhere_else = not isinstance(outcome.error, BusyError | WorkerLostError | RunEndedError)
        else:
            nowhere_else = entry.order.runs_code or not outcome.stored
        if not entry.waiting and nowhere_else:
            self._held[entry.order.plan_id] = time.monotonic() + HELD_SECONDS, outcome

    async def _plan(self, entry: _Entry, order: Order) -> None:
        if not order.runs_code:
            texts = await self._stored_traces(order)
            if texts and await self._judge(entry, order, texts):
                return
        representatives = [rank_class.representative for rank_class in rank_classes(Mesh.of(order.spec.parallel))]
        self._counters.add(JOBS_TRACED, {})
        if len(representatives) == 1:  # traced, judged and advised in one child, for the trace need not travel
            result = await self._call(entry, "plan", order)
            await self._store_and_tell(entry, result)
            texts = result.traces if result is not None else {}
        else:
            texts = await self._trace_classes(entry, order, representatives)
            if not await self._judge(entry, order, texts):
                raise ChildProcessError("the traces of a plan cannot be read")
        if texts and not order.runs_code:
            try:
                await asyncio.shield(asyncio.to_thread(self._history.traces.put, order.trace_id, texts))
            except PlannerError as error:
                _log.warning("the trace of plan %s is not stored: %s", order.plan_id, error)

    async def _judge(self, entry: _Entry, order: Order, texts: Mapping[int, str]) -> bool:
        result = await self._call(entry, "judge", order, texts)
        if result is None:
            _log.warning("the stored trace of %s is damaged; traced anew", order.plan_id)
            return False
        await self._store_and_tell(entry, result)
        return True

    async def _trace_classes(self, entry: _Entry, order: Order, representatives: list[int]) -> dict[int, str]:
        """Several rank classes: as many at once as there are workers. The first refusal is told at once.

        What a class falls into, because shards do not divide, is traced when its first rank has found that out.
        """
        places = asyncio.Semaphore(self._workers.count)
        texts: dict[int, str] = {}
        errors: list[PlannerError] = []

        async def trace_class(rank: int) -> None:
            async with places:
                if errors:
                    return
                try:
                    result = await self._call(entry, "trace", order.spec, rank)
                except PlannerError as error:
                    errors.append(error)
                    self._tell(entry, PlanRefused(error))
                    return
            assert result is not None
            texts.update(result.traces)
            await asyncio.gather(*map(trace_class, result.further))

        await asyncio.gather(*map(trace_class, representatives))
        if errors:
            raise errors[0]
        return texts

    async def _call(self, entry: _Entry, method: str, *arguments: Any) -> WorkerResult | None:
        """What a worker brings about. Raises its refusal, and TraceLimitError where a limit was exceeded before there
        was a plan."""
        order = entry.order
        result: WorkerResult | PlanRefused | None = await self._workers_for(order).call(
            method,
            *arguments,
            seconds=order.seconds(self._settings.trace_seconds),
            torch=self._torches.loaded_for(order.torch),
            tenant=order.tenant,
            on_start=entry.start,
        )
        if isinstance(result, PlanRefused):
            raise result.error
        if result is not None and result.exceeded is not None:
            reason = "time" if result.exceeded.limit is Limit.SECONDS else "memory"
            self._counters.add(WORKERS_KILLED, {"reason": reason})
            run_seconds = None if order.program is None else self._settings.program_seconds
            error = trace_limit_error(result.exceeded, run_seconds)
            if result.plan is None:
                raise error
            _log.warning("plan %s goes without advice: %s", entry.order.plan_id, error.problem)
        return result

    async def _store_and_tell(self, entry: _Entry, result: WorkerResult | None) -> None:
        made = None if result is None else result.plan
        if made is None:
            return

        def store() -> PlanMade:
            text = document_text(made)
            try:
                self._history.plans.put(made)
            except PlannerError as error:
                _log.error(
                    "plan %s is answered but not stored: %s", made.plan_id, error, extra={"plan_id": made.plan_id}
                )
                return PlanMade(text=text, stored=False)
            return PlanMade(text=text)

        # Whoever waited may go in this moment: the plan is stored all the same.
        outcome = await asyncio.shield(asyncio.to_thread(store))
        self._mean_seconds += (time.monotonic() - entry.began - self._mean_seconds) / 8
        self._tell(entry, outcome)

    async def _stored_traces(self, order: Order) -> Mapping[int, str]:
        try:
            return await asyncio.to_thread(self._history.traces.texts, order.trace_id)
        except (PlannerError, zlib.error) as error:
            _log.warning("no trace is read for plan %s: %s", order.plan_id, error)
            return {}

    async def _forget_now_and_then(self) -> None:
        keep = Retention(age=timedelta(days=self._settings.retention_days), plans=self._settings.retention_plans)
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            try:
                await asyncio.to_thread(self._history.forget, keep)
            except PlannerError as error:
                _log.warning("nothing is forgotten: %s", error)


def _ending() -> WorkerLostError:
    return WorkerLostError("the service is shutting down", remedy="try again: its supervisor restarts it")

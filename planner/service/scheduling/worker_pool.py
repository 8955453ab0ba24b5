"""A pool of tracing workers: started ahead, one piece of work each, replaced when they die, counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from planner.service.errors import BusyError, WorkerLostError
from planner.service.history.counters import Counters
from planner.service.metrics import TRACE_RETRIES, WAITING, WORKERS, WORKERS_KILLED
from planner.service.scheduling.tracing_worker import MOST_OTHERS

SLACK_SECONDS = 30.0
"""How long after its time a worker is waited for, which has a child to end and an answer to send."""
START_SECONDS = 300.0
"""The longest that a process may take to load PyTorch; where the paper GPU has to be built, most of a minute."""
MOST_PAUSE_SECONDS = 30.0
_log = logging.getLogger("planner.service")
_Result = TypeVar("_Result")


class EndedFirstError(Exception):
    """Something ended before the work that was waited for."""


async def finish_before(
    end: asyncio.Future[None], work: Coroutine[Any, Any, _Result], seconds: float | None
) -> _Result:
    """What the work returns or raises. Raises EndedFirstError, and cancels the work, if `end` is done or the time is
    over before it."""
    task = asyncio.ensure_future(work)
    try:
        both: set[asyncio.Future[Any]] = {task, end}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        task.cancel()
    raise EndedFirstError


class WorkerDiedError(Exception):
    """The process, or its machine, is gone."""


class Worker(Protocol):
    """A process that has a child do each piece of work, as the pool sees it."""

    async def ready(self) -> None:
        """Returns when PyTorch is loaded."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns. Raises WorkerDiedError if the process dies."""

    async def wait_until_dead(self) -> None:
        """Returns when the process has died, and not before."""

    async def stop(self) -> None:
        """End the work that it does now; it stays."""

    def kill(self) -> None:
        """At once, in whatever it does."""


@dataclass(slots=True)
class _Member:
    worker: Worker
    watch: asyncio.Future[None]
    loaded: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_OTHERS))
    due: float = math.inf
    """The loop's time by which its present work has ended."""
    tenant: str = ""
    """Whose work it does."""

    def load(self, torch: str) -> bool:
        """Note that it is asked for this release now; whether it has to load it first."""
        if not torch:
            return False
        known = torch in self.loaded
        if known:
            self.loaded.remove(torch)
        self.loaded.append(torch)
        return not known

    async def call(self, method: str, *arguments: Any, most_seconds: float) -> Any:
        return await self._finish(self.worker.call(method, *arguments), most_seconds)

    async def stop(self) -> None:
        await self._finish(self.worker.stop(), SLACK_SECONDS)

    async def answers(self) -> bool:
        try:
            await self._finish(self.worker.ready(), SLACK_SECONDS)
        except WorkerDiedError:
            return False
        return True

    async def _finish(self, work: Coroutine[Any, Any, Any], most_seconds: float) -> Any:
        self.due = asyncio.get_running_loop().time() + most_seconds
        try:
            return await finish_before(self.watch, work, most_seconds)
        except EndedFirstError:
            raise WorkerDiedError("it died" if self.watch.done() else "it does not answer") from None


@dataclass(slots=True, eq=False)
class _Waiting:
    tenant: str
    place: asyncio.Future[_Member] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Workers:
    """As many as were asked for, from the start to :meth:`close`. Lives on one event loop."""

    def __init__(
        self,
        hire: Callable[[], Worker],
        count: int,
        counters: Counters,
        *,
        most_wait_seconds: float,
        most_of_one: int | None = None,
    ) -> None:
        """`most_of_one` workers do work of one tenant at a time, also where others are idle: work cannot be put aside
        when another tenant's comes."""
        self.count, self.most_of_one = count, count if most_of_one is None else most_of_one
        self._hire, self._counters, self._most_wait_seconds = hire, counters, most_wait_seconds
        self._idle: deque[_Member] = deque()
        self._busy: list[_Member] = []
        # Who waits for a worker; the second queue is served when nobody waits in the first.
        self._queues: tuple[deque[_Waiting], deque[_Waiting]] = deque(), deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for _ in range(self.count):
            self._engage()

    @property
    def alive(self) -> int:
        now = asyncio.get_running_loop().time()
        return len(self._idle) + sum(now < member.due for member in self._busy)

    @property
    def busy(self) -> int:
        return len(self._busy)

    async def call(
        self,
        method: str,
        *arguments: Any,
        seconds: float,
        torch: str = "",
        behind: bool = False,
        tenant: str = "",
        on_start: Callable[[], None] = lambda: None,
    ) -> Any:
        """What this method of a worker returns, which has its work done within `seconds`; that of another worker, once
        more, if the first dies or does not answer some time after that. `on_start` is called when a worker is free.

        `torch` is the release that it takes, if that is not the workers' own: an idle worker that has loaded it is
        preferred. `behind`: it waits, however long, until no other work waits for a worker. Of several tenants that
        wait, the one whose work the fewest workers do comes first. Work that is cancelled is ended, and its worker
        stays. Raises BusyError if no worker gets free in time, WorkerLostError, and what the
        method raises.
        """
        died = False
        while True:
            member = await self._acquire(behind, torch, tenant)
            if died and not await member.answers():  # what ended the first may have ended this one too, unnoticed yet
                self._replace(member)
                continue
            on_start()
            slack = SLACK_SECONDS + (START_SECONDS if member.load(torch) else 0.0)
            try:
                result = await member.call(method, *arguments, seconds, most_seconds=seconds + slack)
            except WorkerDiedError as death:
                self._replace(member)
                if died:
                    raise WorkerLostError(
                        "the process that traced the job died, and so did the next",
                        remedy="try again; see the service's log",
                    ) from death
                died = True
                self._counters.add(TRACE_RETRIES, {})
                _log.warning("a tracing process died; its work is done again")
            except asyncio.CancelledError:
                self._counters.add(WORKERS_KILLED, {"reason": "abandoned"})
                self._keep(asyncio.create_task(self._stop(member)))
                raise
            except BaseException:
                self._release(member)
                raise
            else:
                self._release(member)
                return result

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for member in [*self._idle, *self._busy]:
            member.watch.cancel()
            member.worker.kill()
        self._idle.clear()
        self._busy.clear()

    async def _stop(self, member: _Member) -> None:
        try:
            await member.stop()
        except Exception as fault:
            _log.warning("a tracing process is replaced, since its work cannot be ended: %s", fault)
            self._replace(member)
        else:
            self._release(member)

    def _count_work_of(self, tenant: str) -> int:
        return sum(member.tenant == tenant for member in self._busy)

    def _assign(self, member: _Member, tenant: str) -> _Member:
        self._busy.append(member)
        member.tenant = tenant
        return member

    async def _acquire(self, behind: bool, torch: str, tenant: str) -> _Member:
        if self._idle and self._count_work_of(tenant) < self.most_of_one:
            member = next((member for member in self._idle if torch in member.loaded), self._idle[0])
            self._idle.remove(member)
            return self._assign(member, tenant)
        waiting, queue = _Waiting(tenant), self._queues[behind]
        place = waiting.place
        queue.append(waiting)
        try:
            async with asyncio.timeout(None if behind else self._most_wait_seconds):
                return await place
        except (TimeoutError, asyncio.CancelledError) as end:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._release(place.result())
            if isinstance(end, asyncio.CancelledError):
                raise
            raise BusyError(
                f"no tracing process was free within {self._most_wait_seconds:g} s",
                remedy="try again later",
                retry_after_seconds=round(self._most_wait_seconds),
            ) from None
        finally:
            with contextlib.suppress(ValueError):
                queue.remove(waiting)

    def _release(self, member: _Member) -> None:
        """To the one of the highest priority, of the tenant with the least work under way, that has waited longest."""
        if member in self._busy:
            self._busy.remove(member)
        if member.watch.done():  # it died between two pieces of work
            self._replace(member)
            return
        for queue in self._queues:
            work = {waiting.tenant: self._count_work_of(waiting.tenant) for waiting in queue}
            may = [each for each in queue if not each.place.done() and work[each.tenant] < self.most_of_one]
            if may:
                chosen = min(may, key=lambda waiting: work[waiting.tenant])
                queue.remove(chosen)
                chosen.place.set_result(self._assign(member, chosen.tenant))
                return
        self._idle.append(member)

    def _replace(self, member: _Member) -> None:
        for group in (self._busy, self._idle):
            if member in group:
                group.remove(member)
        member.watch.cancel()
        member.worker.kill()
        self._engage()

    def _engage(self) -> None:
        self._keep(asyncio.create_task(self._engage_worker()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)  # the event loop itself holds on to no task
        task.add_done_callback(self._tasks.discard)

    async def _engage_worker(self) -> None:
        pause, failed = 1.0, False
        while True:
            worker: Worker | None = None
            try:
                worker = self._hire()
                async with asyncio.timeout(START_SECONDS):
                    await worker.ready()
                break
            except asyncio.CancelledError:
                if worker is not None:
                    worker.kill()
                raise
            except Exception as fault:
                if worker is not None:
                    worker.kill()
                _log.error("no tracing process starts: %s", fault or type(fault).__name__)
                if failed:  # the first time, what ended a process that worked may have ended this one too
                    self._refuse_waiting(fault)
                failed = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)
        member = _Member(worker, asyncio.ensure_future(worker.wait_until_dead()))

        def replace_if_idle(watch: asyncio.Future[None]) -> None:
            if not watch.cancelled():
                watch.exception()  # it is known
                if member in self._idle:  # else its user sees that it died
                    self._replace(member)

        member.watch.add_done_callback(replace_if_idle)
        self._release(member)

    def _refuse_waiting(self, fault: Exception) -> None:
        if self.alive:
            return
        problem = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        for queue in self._queues:
            for waiting in queue:
                if not waiting.place.done():
                    waiting.place.set_exception(
                        WorkerLostError(f"no tracing process can be started: {problem}", remedy="see the service's log")
                    )
            queue.clear()


def publish_levels(counters: Counters, levels: Mapping[str, int]) -> None:
    """What `PlanScheduler.levels` says, for metrics."""
    busy = min(levels["busy"], levels["workers"])
    counters.set(WORKERS, {"state": "busy"}, busy)
    counters.set(WORKERS, {"state": "idle"}, levels["workers"] - busy)
    counters.set(WAITING, {}, levels["waiting"])

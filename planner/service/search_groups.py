"""Plans groups of a search's candidates on the workers that trace for everybody, behind the jobs that wait there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from planner.calibration.interval import Calibration
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import rank_classes
from planner.searching.exact import Answer, OutOfTimeError, Refused
from planner.searching.exact_groups import Group
from planner.service.outcomes import PlanRefused
from planner.service.service_errors import WorkerLostError
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.service.worker_pool import Lease, Workers


class GroupPlanner(Protocol):
    """Whoever has groups planned: the handle of the tracers, or a test's own."""

    async def plan_group(self, group: Group) -> tuple[Answer, ...]:
        """The answers in the order of the jobs. Raises WorkerLostError, and what is wrong with the service."""


class SearchGroups:
    """Groups of all searches on one pool of workers; lives on its event loop. Nothing of it is stored here."""

    def __init__(self, workers: Workers, class_seconds: float, torches: TorchVersions = ONLY_OWN) -> None:
        """`class_seconds` are there for each rank class."""
        self._workers, self._class_seconds, self._torches = workers, class_seconds, torches
        self._tasks: set[asyncio.Task[tuple[Answer, ...]]] = set()
        self._ended = False

    async def plan(self, group: Group) -> tuple[Answer, ...]:
        """The answers of one child in the order of the jobs. A group that no worker survives is refused: the search
        goes on without it. Raises WorkerLostError after the end."""
        if self._ended:
            raise _ending()
        task = asyncio.create_task(self._plan(group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self._ended:
                raise _ending() from None
            raise

    def end(self) -> None:
        """Plan no more: their searches go on when they are asked for again."""
        self._ended = True
        for task in self._tasks:
            task.cancel()

    async def _plan(self, group: Group) -> tuple[Answer, ...]:
        classes = len(rank_classes(Mesh.of(group.jobs[0].parallel)))

        async def work(lease: Lease) -> tuple[Answer, ...] | PlanRefused:
            seconds = classes * self._class_seconds
            found: tuple[Answer, ...] | PlanRefused = await lease.call("search", group, seconds=seconds)
            return found

        try:
            torch = self._torches.loaded_for(group.jobs[0].software.torch)
            found = await self._workers.run(work, behind=True, torch=torch)
        except WorkerLostError as lost:
            return (Refused(lost.problem),) * len(group.jobs)
        return (Refused(found.error.problem),) * len(group.jobs) if isinstance(found, PlanRefused) else found


def _ending() -> WorkerLostError:
    return WorkerLostError("the service ends", remedy="ask again: the search goes on where it was")


class GroupsOnCluster:
    """The `Plans` of a search in a thread: what it submits is planned by an event loop's :class:`GroupPlanner`."""

    def __init__(
        self,
        planner: GroupPlanner,
        loop: asyncio.AbstractEventLoop,
        calibration: Calibration,
        *,
        processes: int,
        seconds: float,
    ) -> None:
        """No group is waited for any more after `seconds`."""
        self.processes = processes
        self._planner, self._loop, self._calibration = planner, loop, calibration
        self._deadline = loop.time() + seconds
        self._stopped = False
        self._stop: asyncio.Event = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._stopped or self._loop.time() >= self._deadline

    def stop(self) -> None:
        """End what is being planned; from any thread."""
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing is planned any more
            self._loop.call_soon_threadsafe(self._stop.set)

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        group = Group(tuple(jobs), self._calibration, whole=whole)
        return asyncio.run_coroutine_threadsafe(self._until_over(lambda: self._planner.plan_group(group)), self._loop)

    async def _until_over(self, ask: Callable[[], Awaitable[tuple[Answer, ...]]]) -> tuple[Answer, ...]:
        if self.is_over:
            raise OutOfTimeError
        work, stop = asyncio.ensure_future(ask()), asyncio.ensure_future(self._stop.wait())
        try:
            left = self._deadline - self._loop.time()
            await asyncio.wait({work, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        finally:
            work.cancel()
            stop.cancel()
        raise OutOfTimeError

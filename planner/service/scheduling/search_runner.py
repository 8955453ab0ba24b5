"""Runs the searches of a service, a few at a time, on the workers that trace for everybody."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Protocol

from planner.errors import PlannerError
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import Job
from planner.planning import identity
from planner.searching import exact_plans, requests
from planner.searching.engine import SearchResult, search
from planner.searching.exact_plans import Answer, Group, KnownAnswers, OutOfTimeError, Refused
from planner.searching.requests import SearchRequest
from planner.searching.results import SEARCH, search_to_json
from planner.searching.weighing import MOST_LOOKED_AT, Scales
from planner.service.errors import BusyError, WorkerLostError
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.records import CANCELLED, INTERRUPTED, Search, SearchState
from planner.service.history.store import History
from planner.service.orders import PlanRefused, job_seconds, scope_search
from planner.service.plan_provider import CalibrationInUse
from planner.service.scheduling.worker_pool import EndedFirstError, Workers, finish_before
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings
from planner.truth.calibration.interval import Calibration


class GroupPlanner(Protocol):
    """Whoever has groups planned: the handle of the tracers, or a test's own."""

    def plan_group(self, group: Group) -> Coroutine[Any, Any, tuple[Answer, ...]]:
        """The answers in the order of the jobs. Raises WorkerLostError, and what is wrong with the service."""


class SearchGroups:
    """Groups of all searches on one pool of workers; lives on its event loop. Nothing of it is stored here."""

    def __init__(self, workers: Workers, class_seconds: float, torches: TorchVersions = ONLY_OWN) -> None:
        self._workers, self._class_seconds, self._torches = workers, class_seconds, torches
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def plan(self, group: Group) -> tuple[Answer, ...]:
        """The answers of one child in the order of the jobs. A group that no worker survives is refused: the search
        goes on without it. Raises WorkerLostError after the end."""
        job = group.jobs[0]
        work = self._workers.call(
            "search", group, seconds=len(rank_classes(Mesh.of(job.parallel))) * job_seconds(job, self._class_seconds),
            torch=self._torches.loaded_for(job.software.torch), behind=True,
        )  # fmt: skip
        try:
            answers: tuple[Answer, ...] | PlanRefused = await finish_before(self._end, work, None)
        except EndedFirstError:
            raise WorkerLostError(
                "the service is shutting down", remedy="try again: the search continues where it was"
            ) from None
        except WorkerLostError as lost:
            answers = PlanRefused(lost)
        return (Refused(answers.error.problem),) * len(group.jobs) if isinstance(answers, PlanRefused) else answers

    def end(self) -> None:
        if not self._end.done():
            self._end.set_result(None)


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
        self.processes = processes
        self._planner, self._loop, self._calibration = planner, loop, calibration
        self._deadline = loop.time() + seconds
        self._stopped = False
        self._end: asyncio.Future[None] = loop.create_future()

    @property
    def is_over(self) -> bool:
        return self._stopped or self._loop.time() >= self._deadline

    def stop(self) -> None:
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing is planned any more
            self._loop.call_soon_threadsafe(self._end.cancel)

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        group = Group(tuple(jobs), self._calibration, whole=whole)
        return asyncio.run_coroutine_threadsafe(self._plan_until_over(group), self._loop)

    async def _plan_until_over(self, group: Group) -> tuple[Answer, ...]:
        if self.is_over:
            raise OutOfTimeError
        try:
            return await finish_before(self._end, self._planner.plan_group(group), self._deadline - self._loop.time())
        except EndedFirstError:
            raise OutOfTimeError from None


TELL_SECONDS = 1.0
_MOST_RECOVERED = 1000
_BUSY_SECONDS = 30
_log = logging.getLogger("planner.service")


class SearchRunner:
    """The searches of one service, each in a thread; it lives beside one event loop. There is one of these at a time.

    What is asked for has an id that follows from it: the same search is run once at a time, answered from the history
    when it is done, and goes on where it was when it had ended early.
    """

    def __init__(
        self,
        history: History,
        settings: Settings,
        planner: GroupPlanner,
        worker_count: Callable[[], Coroutine[Any, Any, int]],
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        self._torches = torches
        self._history, self._settings, self._planner, self._worker_count = history, settings, planner, worker_count
        self._loop = asyncio.get_running_loop()
        self._calibration = CalibrationInUse(history)
        self._lock = threading.Lock()
        self._open: dict[str, GroupsOnCluster | None] = {}
        """Those that wait or run, and what has their groups planned."""
        self._turns: dict[str, Future[None]] = {}
        self._cancelled: set[str] = set()
        self._ending = False
        self._pool = ThreadPoolExecutor(max(1, settings.searches_at_once), "search")

    def begin(self) -> None:
        """Settle what a predecessor left: those that ran are stopped, those that waited are run. In a thread; raises
        HistoryError if the history cannot be used."""
        for left in self._history.searches.in_state(SearchState.RUNNING, _MOST_RECOVERED):
            self._history.searches.put(_over(left, SearchState.STOPPED, stopped=INTERRUPTED))
        for left in self._history.searches.in_state(SearchState.PENDING, _MOST_RECOVERED):
            try:
                self.start(requests.read(left.request, self._settings.search_seconds))
            except PlannerError as error:
                self._history.searches.put(_over(left, SearchState.FAILED, error=error))

    def start(self, request: SearchRequest) -> Search:
        """The search as it is stored: a new one, the one that runs, or the answer. In a thread.

        Raises SpecError for a space that cannot be, BusyError if too many wait, HistoryError.
        """
        calibration = self._calibration.current()
        space = request.space()
        versions = self._torches.nearest(request.job.software.torch).versions
        scope = identity.search_scope(calibration, versions)
        search_id = request.search_id(scope_search(request.job, scope, self._history.id_key))
        with self._lock:
            stored = self._history.searches.get(search_id)
            is_code = bool(request.job.model.factory)
            if stored is not None and (search_id in self._open or (stored.state is SearchState.DONE and not is_code)):
                return stored
            if len(self._open) >= self._settings.search_queue + self._settings.searches_at_once:
                raise BusyError(
                    f"{len(self._open)} searches run or wait already",
                    remedy="ask again when some of them are done",
                    retry_after_seconds=_BUSY_SECONDS,
                )
            self._open[search_id] = None
        known = {} if is_code else self._history.searches.answers(search_id)
        empty = SearchResult(space, request.objective, Scales(space.size))
        waiting = Search(
            search_id=search_id,
            state=SearchState.PENDING,
            asked_at=datetime.now(UTC),
            request=requests.to_json(request),
            document=_result_json(empty, request.top),
        )
        try:
            self._history.searches.put(waiting, known)
        except BaseException:
            self._close(search_id)
            raise
        with self._lock:
            self._turns[search_id] = self._pool.submit(self._run, waiting, request, calibration, known)
        return waiting

    def cancel(self, search_id: str) -> Search | None:
        """The search as it is stored, which ends within a moment if it runs; None if there is none. In a thread."""
        with self._lock:
            turn = self._turns.get(search_id)
            waits = turn is not None and turn.cancel()
        if turn is not None and not waits:
            self._stop_cancelled(search_id)
            return self._history.searches.get(search_id)
        if waits:
            self._close(search_id)
        return self._history.searches.cancel(search_id)

    def _stop_cancelled(self, search_id: str) -> None:
        with self._lock:
            if search_id in self._open:
                self._cancelled.add(search_id)
                if (groups := self._open[search_id]) is not None:
                    groups.stop()

    def close(self) -> None:
        self._ending = True
        with self._lock:
            running = [groups for groups in self._open.values() if groups is not None]
        for groups in running:
            groups.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, waiting: Search, request: SearchRequest, calibration: Calibration, known: dict[str, Any]) -> None:
        began = time.monotonic()
        try:
            ended = self._outcome(waiting, request, calibration, known)
        finally:
            self._close(waiting.search_id)
        _log.info(
            "search %s: %s after %.1f s", ended.search_id, ended.state.value, time.monotonic() - began,
            extra={"search_id": ended.search_id},
        )  # fmt: skip

    def _close(self, search_id: str) -> None:
        with self._lock:
            self._open.pop(search_id, None)
            self._turns.pop(search_id, None)
            self._cancelled.discard(search_id)

    def _outcome(
        self, waiting: Search, request: SearchRequest, calibration: Calibration, known: dict[str, Any]
    ) -> Search:
        """How it ended, stored. Never raises: whatever happens is the outcome."""
        search_id = waiting.search_id
        running = dataclasses.replace(waiting, state=SearchState.RUNNING)
        try:
            if not self._tell(running, known):
                return self._history.searches.get(search_id) or running
            # As many groups at a time as there are workers but one, which is left for jobs.
            count = asyncio.run_coroutine_threadsafe(self._worker_count(), self._loop).result()
            groups = GroupsOnCluster(
                self._planner, self._loop, calibration, processes=max(1, count - 1), seconds=request.seconds
            )
            with self._lock:
                self._open[search_id] = groups
                if search_id in self._cancelled or self._ending:
                    groups.stop()
            plans = KnownAnswers(groups, exact_plans.from_json(known))
            with self._storing(running, plans, request.top) as watch:
                result = search(
                    request.space(), plans, objective=request.objective, top=request.top,
                    until=time.monotonic() + request.seconds, watch=watch,
                )  # fmt: skip
            if result.stopped:
                with self._lock:
                    cancelled = search_id in self._cancelled
                result.stopped = CANCELLED if cancelled else INTERRUPTED if self._ending else result.stopped
            ended = dataclasses.replace(
                running, document=_result_json(result, request.top), finished_at=datetime.now(UTC),
                state=SearchState.STOPPED if result.stopped else SearchState.DONE,
            )  # fmt: skip
            return self._keep(ended, exact_plans.to_json(plans.known))
        except WorkerLostError as error:
            return self._keep(_over(running, SearchState.STOPPED, stopped=INTERRUPTED, error=error))
        except PlannerError as error:
            return self._keep(_over(running, SearchState.REFUSED, error=error))
        except Exception as error:
            _log.exception("search %s: a fault of planner itself", search_id)
            fault = PlannerError(f"a fault of planner itself: {error!r:.300}", remedy="see the service's log")
            return self._keep(_over(running, SearchState.FAILED, error=fault))

    @contextlib.contextmanager
    def _storing(self, running: Search, plans: KnownAnswers, top: int) -> Iterator[Callable[[SearchResult], None]]:
        """Gives the watch of a search: what it is told is stored by a thread, every moment in which there is news."""
        news, over = running, threading.Event()

        def watch(result: SearchResult) -> None:
            nonlocal news  # written here, in the thread of the search, which changes the result
            news = dataclasses.replace(running, document=_result_json(result, top))

        def store() -> None:
            while not over.wait(TELL_SECONDS):
                if not self._tell(news, exact_plans.to_json(plans.known)):
                    self._stop_cancelled(running.search_id)
                    return

        thread = threading.Thread(target=store, daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()

    def _tell(self, running: Search, answers: dict[str, Any]) -> bool:
        """Store how far a search is; whether it goes on: it may be cancelled at another service on this database."""
        try:
            return self._history.searches.put(running, answers, unless_cancelled=True)
        except HistoryUnavailableError as error:
            _log.warning("search %s goes on, and is not stored now: %s", running.search_id, error)
            return True

    def _keep(self, ended: Search, answers: dict[str, Any] | None = None) -> Search:
        try:
            self._history.searches.put(ended, answers)
        except HistoryUnavailableError as error:
            _log.error("the end of search %s is not stored: %s", ended.search_id, error)
        return ended


def _over(search: Search, state: SearchState, stopped: str = "", error: PlannerError | None = None) -> Search:
    document = {**search.document, "stopped": stopped, "problem": None if error is None else error.parts}
    return dataclasses.replace(search, state=state, finished_at=datetime.now(UTC), document=document)


def _result_json(result: SearchResult, top: int) -> dict[str, Any]:
    scales = result.scales
    return {
        **search_to_json(result),
        "progress": {
            "doing": result.doing,
            "looked_at": scales.looked_at,
            "to_look_at": min(scales.size, MOST_LOOKED_AT),
            "planned": result.planned,
            "traces_left": result.traces_left,
            "found": len(result.rows),
            "wanted": top,
        },
        "problem": None,
    }


def to_json(search: Search) -> dict[str, Any]:
    known = {key: value for key, value in search.document.items() if key != "schema"}
    return {
        "schema": SEARCH,
        "search_id": search.search_id,
        "state": search.state.value,
        "asked_at": search.asked_at.isoformat(),
        "finished_at": None if search.finished_at is None else search.finished_at.isoformat(),
        "request": {key: value for key, value in search.request.items() if key != "job"},
        **known,
        "complete": search.state is SearchState.DONE,
    }

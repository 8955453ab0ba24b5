"""Runs the searches of a service, a few at a time; what is known by now is in the history at any moment."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from planner.calibration.interval import Calibration
from planner.errors import PlannerError
from planner.history.history_errors import HistoryUnavailableError
from planner.history.search_table import Search, State
from planner.history.store import History
from planner.planning import identity
from planner.searching import known_answers, requests
from planner.searching.engine import SearchResult, search
from planner.searching.known_answers import KnownAnswers
from planner.searching.requests import SearchRequest
from planner.searching.weighing import Scales
from planner.service import search_document
from planner.service.calibration_in_use import CalibrationInUse
from planner.service.search_groups import GroupPlanner, GroupsOnCluster
from planner.service.service_errors import BusyError, WorkerLostError
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings

TELL_SECONDS = 1.0
"""How often what is known by now is stored."""
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
        worker_count: Callable[[], Awaitable[int]],
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        """To be made on the loop."""
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
        for left in self._history.searches.in_state(State.RUNNING, _MOST_RECOVERED):
            self._history.searches.put(_over(left, State.STOPPED, stopped="interrupted"))
        for left in self._history.searches.in_state(State.PENDING, _MOST_RECOVERED):
            try:
                self.start(requests.read(left.request, self._settings.search_seconds))
            except PlannerError as error:
                self._history.searches.put(_over(left, State.FAILED, error=error))

    def start(self, request: SearchRequest) -> Search:
        """The search as it is stored: a new one, the one that runs, or the answer. In a thread.

        Raises SpecError for a space that cannot be, BusyError if too many wait, HistoryError.
        """
        calibration = self._calibration.current()
        space = request.space()
        versions = self._torches.nearest(request.job.software.torch).versions
        search_id = request.search_id(identity.search_scope(calibration, versions))
        with self._lock:
            found = self._history.searches.get(search_id)
            is_code = bool(request.job.model.factory)
            if found is not None and (search_id in self._open or (found.state is State.DONE and not is_code)):
                return found
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
            state=State.PENDING,
            asked_at=datetime.now(UTC),
            request=requests.to_json(request),
            document=search_document.of_result(empty, request.top),
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
                self._cancelled.add(search_id)
                if (groups := self._open[search_id]) is not None:
                    groups.stop()
        found = self._history.searches.get(search_id)
        if not waits or found is None:
            return found
        self._close(search_id)
        return self._keep(_over(found, State.STOPPED, stopped="cancelled"))

    def close(self) -> None:
        """End what runs: it goes on when it is asked for again."""
        self._ending = True
        with self._lock:
            running = [each for each in self._open.values() if each is not None]
        for each in running:
            each.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, waiting: Search, request: SearchRequest, calibration: Calibration, stored: dict[str, Any]) -> None:
        began = time.monotonic()
        try:
            ended = self._outcome(waiting, request, calibration, stored)
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
        self, waiting: Search, request: SearchRequest, calibration: Calibration, stored: dict[str, Any]
    ) -> Search:
        """How it ended, stored. Never raises: whatever happens is the outcome."""
        running = dataclasses.replace(waiting, state=State.RUNNING)
        try:
            plans = KnownAnswers(self._groups(request, calibration, waiting.search_id), known_answers.from_json(stored))
            with _Telling(self._history, running, plans, request.top) as telling:
                found = search(
                    request.space(), plans, objective=request.objective, top=request.top, time_left=request.seconds,
                    watch=telling,
                )  # fmt: skip
            if found.stopped:
                found.stopped = self._why_stopped(waiting.search_id, found.stopped)
            document = search_document.of_result(found, request.top)
            ended = dataclasses.replace(running, document=document, finished_at=datetime.now(UTC),
                                        state=State.STOPPED if found.stopped else State.DONE)  # fmt: skip
            return self._keep(ended, known_answers.to_json(plans.known))
        except WorkerLostError as error:
            return self._keep(_over(running, State.STOPPED, stopped="interrupted", error=error))
        except PlannerError as error:
            return self._keep(_over(running, State.REFUSED, error=error))
        except Exception as error:
            _log.exception("search %s: a fault of planner itself", waiting.search_id)
            fault = PlannerError(f"a fault of planner itself: {error!r:.300}", remedy="see the service's log")
            return self._keep(_over(running, State.FAILED, error=fault))

    def _groups(self, request: SearchRequest, calibration: Calibration, search_id: str) -> GroupsOnCluster:
        """As many groups at a time as there are workers but one, which is left for jobs."""
        count = asyncio.run_coroutine_threadsafe(_awaited(self._worker_count()), self._loop).result()
        groups = GroupsOnCluster(
            self._planner, self._loop, calibration, processes=max(1, count - 1), seconds=request.seconds
        )
        with self._lock:
            self._open[search_id] = groups
            if search_id in self._cancelled or self._ending:
                groups.stop()
        return groups

    def _why_stopped(self, search_id: str, stopped: str) -> str:
        with self._lock:
            if search_id in self._cancelled:
                return "cancelled"
        return "interrupted" if self._ending else stopped

    def _keep(self, ended: Search, answers: dict[str, Any] | None = None) -> Search:
        try:
            self._history.searches.put(ended, answers)
        except HistoryUnavailableError as error:
            _log.error("the end of search %s is not stored: %s", ended.search_id, error)
        return ended


class _Telling:
    """Stores what is known by now, every moment in which there is news; to be used as a context."""

    def __init__(self, history: History, running: Search, plans: KnownAnswers, top: int) -> None:
        self._history, self._search, self._plans, self._top = history, running, plans, top
        self._news = running
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._store_on, daemon=True)

    def __enter__(self) -> _Telling:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def __call__(self, result: SearchResult) -> None:
        """In the thread of the search, which changes the result."""
        self._news = dataclasses.replace(self._search, document=search_document.of_result(result, self._top))

    def _store_on(self) -> None:
        stored: Search | None = None
        while not self._over.wait(TELL_SECONDS):
            news = self._news
            if news is stored:
                continue
            try:
                self._history.searches.put(news, known_answers.to_json(self._plans.known))
                stored = news
            except HistoryUnavailableError as error:
                _log.warning("search %s goes on, and is not stored now: %s", news.search_id, error)


async def _awaited(count: Awaitable[int]) -> int:
    return await count


def _over(search: Search, state: State, stopped: str = "", error: PlannerError | None = None) -> Search:
    """As it is known, and why it is no more."""
    document = {**search.document, "stopped": stopped, **search_document.of_error(error)}
    return dataclasses.replace(search, state=state, finished_at=datetime.now(UTC), document=document)

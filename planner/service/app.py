"""The Serve application: replicas that answer, and deployments that schedule plans, search, and run validations."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from planner.errors import PlannerError
from planner.runtime.fork_server import ServerLostError
from planner.runtime.limits import Limits
from planner.searching.exact_plans import Answer, Group
from planner.searching.requests import SearchRequest
from planner.service.errors import WorkerLostError
from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.logs import start_logging
from planner.service.orders import Order, Outcome, PlanRefused, code_isolation, describe_walls
from planner.service.plan_provider import CalibrationInUse, PlanProvider
from planner.service.scheduling import search_runner
from planner.service.scheduling.plan_scheduler import PlanScheduler, count_runners
from planner.service.scheduling.search_runner import SearchRunner
from planner.service.scheduling.tracing_worker import TracingWorker
from planner.service.scheduling.worker_pool import WorkerDiedError, Workers, publish_levels
from planner.service.torch_versions import ONLY_OWN, TorchVersions, read_torch_versions
from planner.service.validation import validation_run
from planner.service.validation.requests import Request, validation_json
from planner.service.validation.runner import STOP_SECONDS, ValidationRunner, build_conditions
from planner.settings import Settings
from planner.tracing.isolated import Isolation

TRACERS = "Tracers"
MOST_WORKERS = 8
WORKER_CPUS = 0.5
"""Of a node: a trace keeps one busy, but for most of the time there is none."""
RUNNER_CPUS = 0.1
"""As other deployments have: on a node of one CPU everything finds room."""
WARMING_SECONDS = 60.0
"""What a process takes at most to load PyTorch on a machine that is busy."""
LEVEL_SECONDS = 1.0
GRACE_SECONDS = 30.0
SLACK_SECONDS = 2.0
READY_SECONDS = 3.0
AWAY = RayActorError, RayServeException, TaskCancelledError
"""What Ray says of a deployment whose replica died, is ended, or is not there."""
HANDED_OVER_SECONDS = 30.0
"""How long a replica waits for a deployment that is being started anew."""
_log = logging.getLogger("planner.service")
Document = dict[str, Any]
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def _refusals_as_values(
    method: Callable[[Any, _Argument], Awaitable[_Result]],
) -> Callable[[Any, _Argument], Awaitable[_Result | PlanRefused]]:
    """Of a deployment: an exception would arrive wrapped."""

    @functools.wraps(method)
    async def answer(self: Any, argument: _Argument) -> _Result | PlanRefused:
        try:
            return await method(self, argument)
        except PlannerError as error:
            return PlanRefused(error)

    return answer


class RayWorker:
    """A TracingWorker in an actor of its own; it ends with its owner.

    Ray cancels whatever was submitted in the context of a request together with that request. Workers serve all
    requests, so everything is submitted to them outside of any: callers that leave end their work by :meth:`stop`.
    """

    def __init__(
        self,
        limits: Limits,
        isolation: Isolation,
        torches: TorchVersions = ONLY_OWN,
        cpus: float = WORKER_CPUS,
    ) -> None:
        self._work = 0
        # What is asked beside the work has a thread of its own. The decorator's types know nothing of groups.
        decorate: Any = ray.remote
        actor = decorate(num_cpus=cpus, max_restarts=0, concurrency_groups={"live": 1, "ask": 1})(TracingWorker)
        self._actor: Any = contextvars.Context().run(
            actor.options(scheduling_strategy="SPREAD").remote, limits, isolation, torches
        )

    async def ready(self) -> None:
        await self.process()

    async def process(self) -> int:
        """Its id; waits for its start, but not for what it does."""
        process: int = await self._result(self._actor.process.options(concurrency_group="ask"))
        return process

    async def call(self, method: str, *arguments: Any) -> Any:
        self._work += 1
        return await self._result(getattr(self._actor, method), self._work, *arguments)

    async def wait_until_dead(self) -> None:
        """Returns when the actor has died: until then its call goes on."""
        with contextlib.suppress(WorkerDiedError):
            await self._result(self._actor.live.options(concurrency_group="live"))

    async def stop(self) -> None:
        await self._result(self._actor.stop.options(concurrency_group="ask"), self._work)

    def kill(self) -> None:
        ray.kill(self._actor, no_restart=True)

    async def _result(self, method: Any, *arguments: Any) -> Any:
        try:
            return await contextvars.Context().run(method.remote, *arguments)
        except RayTaskError as fault:
            if isinstance(fault.cause, ChildProcessError | ServerLostError):
                raise WorkerDiedError(str(fault.cause)) from fault
            raise  # a fault of ours, with the place where it happened
        except RayActorError as death:
            raise WorkerDiedError(str(death)) from death


def tracers(
    settings: Settings, history: History, count: int, counters: Counters, torches: TorchVersions = ONLY_OWN
) -> PlanScheduler:
    limits = Limits(seconds=settings.trace_seconds, memory_bytes=settings.trace_memory_bytes)
    isolation = code_isolation(settings)

    def pool(count: int, most_of_one: int, cpus: float, seconds: float) -> Workers:
        most_wait_seconds = seconds * 2 + WARMING_SECONDS
        return Workers(
            lambda: RayWorker(limits, isolation, torches, cpus), count, counters, most_wait_seconds=most_wait_seconds,
            most_of_one=most_of_one,
        )  # fmt: skip

    return PlanScheduler(
        settings,
        history,
        pool(count, count, WORKER_CPUS, settings.trace_seconds),
        pool(*count_runners(settings, count), RUNNER_CPUS, settings.program_seconds),
        counters,
        torches,
    )


class PlanSchedulerDeployment:
    async def __init__(self, settings: Settings, torches: TorchVersions = ONLY_OWN) -> None:  # type: ignore[misc]
        start_logging(settings.log_level)
        count = settings.trace_workers
        if not count:  # one for every CPU of the cluster, up to a number
            resources: Mapping[str, float] = await asyncio.to_thread(ray.cluster_resources)
            count = max(1, min(int(resources.get("CPU", 1)), MOST_WORKERS))
        self._history = History.open(settings.database)
        self._counters = Counters(self._history.totals)
        self._counters.start()
        self._scheduler = tracers(settings, self._history, count, self._counters, torches)
        self._scheduler.start()
        self._publishing = asyncio.create_task(self._publish_levels())
        self._warning = await asyncio.to_thread(describe_walls, settings)
        if self._warning:
            _log.warning("%s", self._warning)

    async def make(self, order: Order, seconds: float | None, keep: bool) -> Outcome | None:
        return await self._scheduler.make(order, seconds, keep)

    @_refusals_as_values
    async def plan_group(self, group: Group) -> tuple[Answer, ...]:
        return await self._scheduler.groups.plan(group)

    async def end_run(self, plan_id: str) -> bool:
        return await self._scheduler.end_run(plan_id)

    async def levels(self) -> dict[str, int]:
        return self._scheduler.levels()

    async def readiness(self) -> PlanRefused | str:
        return self._scheduler.unready() or self._warning

    async def end(self) -> None:
        """Make no more plans: those that are being made have some seconds, those that wait for the rest are told."""
        await self._scheduler.finish(GRACE_SECONDS)

    async def __del__(self) -> None:
        """Serve awaits this after the last answer: what goes on in the background is finished and stored."""
        with contextlib.suppress(AttributeError):  # it was never made
            await self._scheduler.finish(GRACE_SECONDS)
            self._publishing.cancel()
            publish_levels(self._counters, self._scheduler.levels())
            await asyncio.to_thread(self._counters.close)
            self._history.close()

    async def _publish_levels(self) -> None:
        while True:
            publish_levels(self._counters, self._scheduler.levels())
            await asyncio.sleep(LEVEL_SECONDS)


class TracingHandle:
    """Calls PlanScheduler from a replica of the service; once more if the one that all share has died."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def make(self, order: Order, seconds: float | None, keep: bool) -> Outcome | None:
        loop = asyncio.get_running_loop()
        until = None if seconds is None else loop.time() + seconds

        def ask() -> Any:
            left = None if until is None else max(until - loop.time(), 0.001)
            return self._handle.make.remote(order, left, keep)

        try:
            # PlanScheduler ends the wait itself; this is for one that does not even answer.
            async with asyncio.timeout(None if seconds is None else seconds + SLACK_SECONDS):
                outcome: Outcome | None = await self._ask_twice(ask)
                return outcome
        except TimeoutError:
            return None

    async def plan_group(self, group: Group) -> tuple[Answer, ...]:
        answers: tuple[Answer, ...] | PlanRefused = await self._ask_twice(lambda: self._handle.plan_group.remote(group))
        if isinstance(answers, PlanRefused):
            raise answers.error
        return answers

    async def count_workers(self) -> int:
        levels: dict[str, int] = await self._handle.levels.remote()
        return levels["planning"]

    async def end_run(self, plan_id: str) -> bool:
        try:
            async with asyncio.timeout(HANDED_OVER_SECONDS):
                ended: bool = await self._ask_twice(lambda: self._handle.end_run.remote(plan_id))
                return ended
        except TimeoutError as silence:
            raise WorkerLostError("the planning scheduler does not respond", remedy="try again") from silence

    async def ready(self) -> str:
        """Returns when a job can be planned, with what the operator has to know besides. Raises WorkerLostError or
        BusyError if none can."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                readiness: PlanRefused | str = await self._handle.readiness.remote()
        except (TimeoutError, *AWAY) as silence:
            raise WorkerLostError("the planning scheduler does not respond", remedy="wait; it starts") from silence
        if isinstance(readiness, PlanRefused):
            raise readiness.error
        return readiness

    async def _ask_twice(self, ask: Callable[[], Any]) -> Any:
        died = False
        while True:
            response = ask()
            try:
                return await response
            except asyncio.CancelledError:
                response.cancel()
                raise
            except AWAY as death:
                if died:
                    raise WorkerLostError(
                        "the planning scheduler crashed twice", remedy="try again; see the service's log"
                    ) from death
                died = True
                _log.warning("the tracers died and are asked again: %s", type(death).__name__)


def end_tracing(application: str) -> None:
    try:
        handle: Any = serve.get_deployment_handle(TRACERS, application)
        handle.end.remote().result(timeout_s=GRACE_SECONDS + SLACK_SECONDS)
    except (*AWAY, RayTaskError, TimeoutError) as away:
        _log.warning("the tracers are ended without having answered: %s", away or type(away).__name__)


class SearchesDeployment:
    async def __init__(  # type: ignore[misc]
        self, settings: Settings, tracers: DeploymentHandle[Any], torches: TorchVersions = ONLY_OWN
    ) -> None:
        start_logging(settings.log_level)
        self._history, tracing = History.open(settings.database), TracingHandle(tracers)
        self._runner = SearchRunner(self._history, settings, tracing, tracing.count_workers, torches)
        await asyncio.to_thread(self._runner.begin)

    @_refusals_as_values
    async def start(self, request: SearchRequest) -> Document:
        return search_runner.to_json(await asyncio.to_thread(self._runner.start, request))

    @_refusals_as_values
    async def cancel(self, search_id: str) -> Document | None:
        search = await asyncio.to_thread(self._runner.cancel, search_id)
        return None if search is None else search_runner.to_json(search)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never made
            self._runner.close()
            self._history.close()


class ValidationsDeployment:
    def __init__(self, settings: Settings, torches: TorchVersions = ONLY_OWN) -> None:
        start_logging(settings.log_level)
        validation_run.hide_gpus()
        self._history = History.open(settings.database)
        self._runner = ValidationRunner(self._history, settings, build_conditions(settings), torches=torches)
        self._runner.begin()

    @_refusals_as_values
    async def start(self, request: Request) -> Document:
        return validation_json(await asyncio.to_thread(self._runner.start, request))

    async def process(self) -> int:
        return os.getpid()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never made
            self._runner.close()
            self._history.close()


class RunnerHandle:
    """The deployment of searches, or of validations, as a replica calls it.

    Raises what the deployment refuses (SpecError, BusyError, HistoryError), and WorkerLostError if it is not there.
    """

    def __init__(self, handle: DeploymentHandle[Any], worker: str) -> None:
        self._handle, self._worker = handle, worker

    async def start(self, request: SearchRequest | Request) -> Document:
        """The search or validation as it is stored: waiting, running, over, or refused by the cluster."""
        return await self._ask(self._handle.start, request)  # type: ignore[no-any-return]

    async def cancel(self, search_id: str) -> Document | None:
        """As :meth:`start`, of one that ends within a moment; None if there is none."""
        return await self._ask(self._handle.cancel, search_id)  # type: ignore[no-any-return]

    async def _ask(self, method: Any, argument: Any) -> Any:
        try:
            async with asyncio.timeout(HANDED_OVER_SECONDS):
                answer = await method.remote(argument)
        except (TimeoutError, RayError, RayServeException) as lost:
            raise WorkerLostError(f"the {self._worker} is restarting", remedy="try again") from lost
        if isinstance(answer, PlanRefused):
            raise answer.error
        return answer


BEATS = 5
"""How often within its time the loop says that it goes."""
_STANDARD_ERROR = 2
"""The file itself: whatever stands in sys.stderr may need Python's lock."""


class LoopWatchdog:
    """ASGI middleware: from the application's startup to its shutdown its event loop has to go.

    The time is kept by a thread that needs no lock of Python's (faulthandler), so that a call into C that holds the
    lock is found out too. It writes where every thread stands to standard error, and ends the process with 1.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" or not self._seconds:
            await self._app(scope, receive, send)
            return
        beating = asyncio.create_task(self._beat())
        try:
            await self._app(scope, receive, send)
        finally:
            beating.cancel()
            faulthandler.cancel_dump_traceback_later()

    async def _beat(self) -> None:
        while True:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=_STANDARD_ERROR)
            await asyncio.sleep(self._seconds / BEATS)


NAME = "planner"
REPLICA_GRACE_SECONDS = 45.0
"""A replica that ends waits so long for those whose plan is being made: longer than the tracers need to tell them."""


@serve.ingress()
class Planner:
    """A replica: one dependencies, and the HTTP interface to it. Holds nothing that is not in the history."""

    def __init__(
        self,
        settings: Settings,
        tracers: DeploymentHandle[Any],
        validations: DeploymentHandle[Any],
        searches: DeploymentHandle[Any],
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        start_logging(settings.log_level)
        self._history = History.open(settings.database)
        self._counters = Counters(self._history.totals)
        self._counters.start()
        tracing = TracingHandle(tracers)
        self._dependencies = Dependencies(
            settings=settings,
            history=self._history,
            plan_provider=PlanProvider(
                settings, self._history, tracing, CalibrationInUse(self._history), torches=torches
            ),
            torches=torches,
            validations=RunnerHandle(validations, "measuring worker"),
            searches=RunnerHandle(searches, "search worker"),
            counters=self._counters,
            tracers_ready=tracing.ready,
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return LoopWatchdog(interface(self._dependencies), self._dependencies.settings.loop_seconds)

    def __del__(self) -> None:
        self._counters.close()
        self._history.close()


def build(args: Mapping[str, Any] | None = None) -> Application:
    """The application by its settings: those in `args`, else those in the environment.

    Raises SettingError for a setting that cannot be used.
    """
    return application(Settings.read(args, os.environ))


def application(settings: Settings) -> Application:
    torches = read_torch_versions(settings.torch_versions)
    replicas = serve.deployment(
        name="Planner",
        # The replica's own limits come first (planner.service.http.limits): they let probes through, and count whom
        # they refuse, which Ray's do not.
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=REPLICA_GRACE_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=1,  # so soon a replica that died is found out, and another one started
        logging_config={"log_level": "WARNING", "enable_access_log": False},  # the replica writes its own
        ray_actor_options={"num_cpus": 0.1},
    )(Planner)
    tracers = _bind_one(
        PlanSchedulerDeployment, settings, torches, name=TRACERS, health_check_period_s=2,
        max_ongoing_requests=10_000,  # they wait here, where equal jobs are known; its own bound is lower
        graceful_shutdown_timeout_s=GRACE_SECONDS,
    )  # fmt: skip
    searches = _bind_one(
        SearchesDeployment, settings, tracers, torches, name="Searches", health_check_period_s=2,
        max_ongoing_requests=100, graceful_shutdown_timeout_s=5.0,
    )  # fmt: skip
    validations = _bind_one(
        ValidationsDeployment, settings, torches, name="Validations", max_ongoing_requests=100,
        graceful_shutdown_timeout_s=2 * STOP_SECONDS,
    )  # fmt: skip
    return replicas.bind(settings, tracers, validations, searches, torches)


def _bind_one(deployed: Any, *arguments: Any, **options: Any) -> Any:
    deployment = serve.deployment(
        num_replicas=1, graceful_shutdown_wait_loop_s=0.5, ray_actor_options={"num_cpus": 0.1}, **options
    )
    return deployment(deployed).bind(*arguments)

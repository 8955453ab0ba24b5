"""Who makes plans, with processes that a test moves by hand: they may die, or take too much."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from stored import new_history

from planner.events import Alloc, Category, Free, Mark, Phase, Role
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import Cluster, Decoder, DpShard, Gpu, Input, Job, Metadata, Model, Parallel, Pp, Train
from planner.planning.plan import plan_from_traces
from planner.planning.planned_classes import assign_ranks, parts_of_class
from planner.report.statement import Advice, Plan, Verdict
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.service.history.store import History
from planner.service.orders import Order, WorkerResult, build_order
from planner.service.plan_provider import LOOK_SECONDS, CalibrationInUse, PlanAnswer, PlanProvider
from planner.service.scheduling.plan_scheduler import PlanScheduler, count_runners
from planner.service.scheduling.worker_pool import WorkerDiedError, Workers
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration
from planner.units import GIB, MIB

GPU = Cluster(gpu=Gpu(name="H100-SXM-80GB", total_bytes=80 * GIB, arch="sm_90"))
JOB = Job(
    metadata=Metadata(name="first", team="nlp"),
    model=Model(decoder=Decoder(layers=2, hidden=64, heads=2, kv_heads=2, ffn=128, vocab=256)),
    train=Train(sequence_length=64),
    cluster=GPU,
)
OTHER = dataclasses.replace(JOB, train=Train(sequence_length=128))
CODE = dataclasses.replace(JOB, model=Model(factory="shop:model"), train=Train(inputs={"x": Input(shape=(4,))}))
STAGES = dataclasses.replace(
    JOB,
    parallel=Parallel(pp=Pp(degree=2)),
    cluster=dataclasses.replace(GPU, gpus_per_node=2),
    train=Train(sequence_length=64, gradient_accumulation_steps=4),
)
UNEVEN = dataclasses.replace(
    JOB, parallel=Parallel(dp_shard=DpShard(degree=4)), cluster=dataclasses.replace(GPU, gpus_per_node=4)
)
"""Of its dim of ten rows the first three ranks have three, the last has one."""
UNEVEN_STAGES = dataclasses.replace(
    STAGES,
    parallel=Parallel(pp=Pp(degree=2), dp_shard=DpShard(degree=4)),
    cluster=dataclasses.replace(GPU, gpus_per_node=8),
)


MOST_SECONDS = 600.0
"""What a story may take on a machine that is busy, and so what may wait in one."""


def ran(order: Order, judged: Plan) -> Plan:
    """The statement on a program whose ranks hold what those of a plan do."""
    assert order.program is not None
    request = order.program.request
    return Plan(
        plan_id=order.plan_id, trace_id=order.trace_id, metadata=request.metadata, command=request.command,
        gpu=request.gpu.name, nodes=request.line.nodes, gpus_per_node=request.line.processes_per_node,
        ending="ended", iterations=3, seen={}, unseen=(), allocator_conf="", calibrated=False,
        rank_classes=judged.rank_classes, assumptions=(), out_of_memory=(), provenance=judged.provenance,
    )  # fmt: skip


def trace_of(rank: int, size: int = 512 * MIB, dims: tuple[int, ...] = ()) -> Trace:
    return Trace(
        sharded_dims=dims,
        events=(
            Mark(Phase.LOAD),
            Alloc(0, size + rank * MIB),
            Role(0, Category.PARAMETER, "weight"),
            Mark(Phase.FORWARD, 1),
            Alloc(1, 64 * MIB),
            Mark(Phase.BACKWARD, 1),
            Free(1),
            Mark(Phase.OPTIMIZER_STEP, 1),
        ),
    )


class CountedEvents:
    """In the place of the counters that all processes share: how often each event was counted, by name or reason."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()

    def add(self, name: str, labels: Mapping[str, str]) -> None:
        self.events[labels.get("reason", name)] += 1


@dataclasses.dataclass
class FakePool:
    """Where the workers of a test stand: what they do, and what was asked of them."""

    asked: list[str] = dataclasses.field(default_factory=list)
    does: Callable[[str], Awaitable[Any]] | None = None
    """Comes before what a worker does; what it returns, if anything, is the worker's answer."""
    size: int = 512 * MIB
    advises: bool = True
    broken: Exception | None = None
    """Why no worker starts."""
    stops: Callable[[], Awaitable[None]] | None = None
    """What happens where a worker is told to end its work."""
    hired: int = 0
    killed: int = 0
    stopped: int = 0
    workers: list[FakeWorker] = dataclasses.field(default_factory=list)


class FakeWorker:
    """A worker that plans by hand."""

    def __init__(self, pool: FakePool) -> None:
        self._pool = pool
        pool.hired += 1
        pool.workers.append(self)
        self.gone = asyncio.Event()
        self.dead = False
        """Whether its process has ended, which nobody has noticed yet unless it is `gone`."""

    async def ready(self) -> None:
        if self.dead:
            raise WorkerDiedError("it has ended")
        if self._pool.broken:
            raise self._pool.broken

    async def call(self, method: str, *arguments: Any) -> Any:
        self._pool.asked.append(method)
        if self.dead:
            raise WorkerDiedError("it has ended")
        *given, seconds = arguments
        try:
            async with asyncio.timeout(seconds):
                answer = await self._pool_does(method)
        except TimeoutError:
            return WorkerResult(exceeded=LimitExceededError(Limit.SECONDS, Limits(seconds=seconds), seconds))
        return getattr(self, method)(*given) if answer is None else answer

    async def wait_until_dead(self) -> None:
        await self.gone.wait()

    async def stop(self) -> None:
        self._pool.stopped += 1
        if self._pool.stops is not None:
            await self._pool.stops()

    def kill(self) -> None:
        self._pool.killed += 1

    async def _pool_does(self, method: str) -> Any:
        return None if self._pool.does is None else await self._pool.does(method)

    def run(self, order: Order) -> WorkerResult:
        judged = self._judged(
            build_order(JOB, order.calibration, b"key"), {0: rank_trace.dumps(trace_of(0, self._pool.size))}
        )
        return WorkerResult(plan=ran(order, judged))

    def plan(self, order: Order) -> WorkerResult:
        first = self.trace(order.spec, 0)
        texts = dict(first.traces)
        for rank in first.further:
            texts |= self.trace(order.spec, rank).traces
        return WorkerResult(plan=self._advised(self._judged(order, texts)), traces=texts)

    def trace(self, job: Job, rank: int) -> WorkerResult:
        found = trace_of(rank, self._pool.size, dims=(10,) if job.parallel.dp_shard.degree > 1 else ())
        classes = [each for each in rank_classes(Mesh.of(job.parallel)) if each.representative == rank]
        parts = [part.representative for each in classes for part in parts_of_class(job, each, found)]
        return WorkerResult(traces={rank: rank_trace.dumps(found)}, further=tuple(parts[1:]))

    def judge(self, order: Order, texts: dict[int, str]) -> WorkerResult | None:
        try:
            return WorkerResult(plan=self._advised(self._judged(order, texts)))
        except ValueError:
            return None

    def _judged(self, order: Order, texts: Mapping[int, str]) -> Plan:
        found = {rank: rank_trace.loads(text) for rank, text in texts.items()}
        return plan_from_traces(order.spec, assign_ranks(order.spec, found), order.calibration).plan

    def _advised(self, plan: Plan) -> Plan:
        if plan.verdict is not Verdict.EXCEEDS or not self._pool.advises:
            return plan
        advice = Advice(change={"train.micro_batch_size": 1}, device_bytes=GIB, verdict=Verdict.FITS)
        return dataclasses.replace(plan, advice=(advice,))


@dataclasses.dataclass
class ServiceStack:
    """A plan_provider, the tracers behind it, and their workers."""

    pool: FakePool
    plan_provider: PlanProvider
    tracers: PlanScheduler
    history: History
    clock: list[float]
    counted: Counter[str]

    def calibrate(self, learnt: Calibration) -> None:
        """Store a calibration, and let the time pass until it is in use."""
        self.history.calibrations.put(learnt.id, interval.to_json(learnt))
        self.clock[0] += LOOK_SECONDS

    async def asked(self) -> None:
        """Until a worker was asked."""
        while not self.pool.asked:
            await asyncio.sleep(0.005)

    async def waited_for_by(self, callers: int) -> None:
        """Until so many callers wait for what is being made."""
        while sum(entry.waiting for entry in self.tracers._entries.values()) < callers:
            await asyncio.sleep(0.005)

    def grow_older(self, seconds: float) -> None:
        """As if what is being made had been asked for so much earlier."""
        for entry in self.tracers._entries.values():
            entry.began -= seconds

    async def settled(self) -> None:
        """Until nothing is being made."""
        while self.tracers.entry_count or self.tracers.levels()["busy"]:
            await asyncio.sleep(0.005)


class StackRunner:
    """Runs stacks that are closed after the test's own coroutine."""

    def __init__(self, path: Path) -> None:
        self.url = new_history(path)

    def __call__(
        self,
        story: Callable[[ServiceStack], Coroutine[Any, Any, None]],
        *,
        torches: TorchVersions = ONLY_OWN,
        **settings: Any,
    ) -> None:
        asyncio.run(asyncio.wait_for(self._run(story, settings, torches), MOST_SECONDS))

    async def _run(
        self,
        story: Callable[[ServiceStack], Coroutine[Any, Any, None]],
        given: dict[str, Any],
        torches: TorchVersions,
    ) -> None:
        settings = Settings(database=self.url, **{"trace_workers": 1, "trace_seconds": MOST_SECONDS, **given})
        pool, clock = FakePool(), [0.0]
        with History.open(self.url) as history:
            counters: Any = CountedEvents()
            counts = (settings.trace_workers, settings.trace_workers), count_runners(settings, settings.trace_workers)
            workers, runners = (
                Workers(
                    lambda: FakeWorker(pool), count, counters, most_wait_seconds=MOST_SECONDS, most_of_one=most_of_one
                )
                for count, most_of_one in counts
            )
            tracers = PlanScheduler(settings, history, workers, runners, counters, torches)
            tracers.start()
            calibration = CalibrationInUse(history, now=lambda: clock[0])
            provider = PlanProvider(settings, history, tracers, calibration, torches=torches)
            await story(ServiceStack(pool, provider, tracers, history, clock, counters.events))
            await tracers.finish()


def on_stack(**settings: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Makes a coroutine with a stack, and fixtures, a test of a stack of its own under these settings."""

    def decorate(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def test(tmp_path: Path, **fixtures: Any) -> None:
            given = {"tmp_path": tmp_path, **fixtures}
            StackRunner(tmp_path)(lambda stack: story(stack, **{name: given[name] for name in wanted}), **settings)

        wanted = [name for name in inspect.signature(story).parameters if name != "stack"]
        test.__name__, test.__doc__ = story.__name__, story.__doc__
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(["tmp_path", *wanted])
        ]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return test

    return decorate


def named(name: str, job: Job = JOB) -> Job:
    return dataclasses.replace(job, metadata=Metadata(name=name))


async def never(_: str) -> None:
    await asyncio.Event().wait()


async def when(go: asyncio.Event) -> None:
    await go.wait()


def metadata(found: PlanAnswer) -> str:
    assert not found.is_pending
    return str(json.loads(found.text)["job"]["metadata"]["name"])

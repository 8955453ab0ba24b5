"""Who makes plans, with processes that a test moves by hand: they may die, or take too much."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from planner import planning
from planner.events import Alloc, Category, Free, Mark, Phase, Role
from planner.history.columns import compact_json
from planner.history.store import History
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import rank_classes
from planner.report.statement import Advice, Plan, Verdict
from planner.service.calibration_in_use import CalibrationInUse
from planner.service.desk import Answered, Desk, Pending
from planner.service.ids import Order
from planner.service.outcomes import Traced
from planner.service.tracers import Tracers
from planner.service.workers import Workers
from planner.settings import Settings
from planner.spec.job import Cluster, Decoder, DpShard, Gpu, Input, Job, Metadata, Model, Parallel, Pp, Train
from planner.tracing import wire
from planner.tracing.traced import Trace
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


@dataclasses.dataclass
class Floor:
    """Where the workers of a test stand: what they do, and what was asked of them."""

    asked: list[str] = dataclasses.field(default_factory=list)
    does: Callable[[str], Awaitable[Any]] | None = None
    """Comes before what a worker does; what it returns, if anything, is the worker's answer."""
    size: int = 512 * MIB
    broken: Exception | None = None
    """Why no worker starts."""
    hired: int = 0
    killed: int = 0
    kept_bytes: int = 0
    workers: list[HandWorker] = dataclasses.field(default_factory=list)


class HandWorker:
    """A worker that plans by hand."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        floor.hired += 1
        floor.workers.append(self)
        self.grown: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        if self._floor.broken:
            raise self._floor.broken

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "resident_bytes":
            return self._floor.kept_bytes
        self._floor.asked.append(method)
        answer = await self._floor_does(method)
        return getattr(self, method)(*arguments) if answer is None else answer

    async def overdrawn(self) -> int:
        return await self.grown

    def kill(self) -> None:
        self._floor.killed += 1

    async def _floor_does(self, method: str) -> Any:
        return None if self._floor.does is None else await self._floor.does(method)

    def plan(self, order: Order) -> Plan:
        return self.judge(order, self.written(order))

    def trace(self, job: Job, rank: int) -> Traced:
        found = trace_of(rank, self._floor.size, dims=(10,) if job.parallel.dp_shard.degree > 1 else ())
        classes = [each for each in rank_classes(Mesh.of(job.parallel)) if each.representative == rank]
        parts = [part.representative for each in classes for part in planning.parts_of_class(job, each, found)]
        return Traced(compact_json(wire.to_json(found)), tuple(parts[1:]))

    def judge(self, order: Order, texts: dict[int, str]) -> Plan | None:
        try:
            found = {rank: wire.from_json(json.loads(text)) for rank, text in texts.items()}
        except ValueError:
            return None
        return planning.judged(order.job, planning.with_their_ranks(order.job, found), order.calibration).plan

    def advise(self, order: Order) -> Plan:
        advice = Advice(change={"train.micro_batch_size": 1}, device_bytes=GIB, verdict=Verdict.FITS)
        return dataclasses.replace(self.plan(order), advice=(advice,))

    def written(self, order: Order) -> dict[int, str]:
        first = self.trace(order.job, 0)
        return {0: first.text} | {rank: self.trace(order.job, rank).text for rank in first.further}


@dataclasses.dataclass
class House:
    """A desk, the tracers behind it, and their workers."""

    floor: Floor
    desk: Desk
    tracers: Tracers
    history: History
    clock: list[float]

    async def settled(self) -> None:
        """Until nothing is being made."""
        while self.tracers.in_the_making or self.tracers.state()["busy"]:
            await asyncio.sleep(0.005)


class Opening:
    """Opens houses that are closed after the test's own coroutine."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path / 'history.db'}"

    def __call__(self, story: Callable[[House], Coroutine[Any, Any, None]], **settings: Any) -> None:
        asyncio.run(asyncio.wait_for(self._told(story, settings), 15))

    async def _told(self, story: Callable[[House], Coroutine[Any, Any, None]], given: dict[str, Any]) -> None:
        settings = Settings(database=self.url, **{"trace_workers": 1, "trace_seconds": 5.0, **given})
        floor, clock = Floor(), [0.0]
        with History.open(self.url) as history:
            workers = Workers(
                lambda: HandWorker(floor), settings.trace_workers, most_wait_seconds=5, most_idle_bytes=GIB
            )
            tracers = Tracers(settings, history, workers, now=lambda: clock[0])
            tracers.start()
            calibration = CalibrationInUse(history, now=lambda: clock[0])
            await story(House(floor, Desk(settings, history, tracers, calibration), tracers, history, clock))
            await tracers.finish()


def named(name: str, job: Job = JOB) -> Job:
    return dataclasses.replace(job, metadata=Metadata(name=name))


async def never(_: str) -> None:
    await asyncio.Event().wait()


async def when(go: asyncio.Event) -> None:
    await go.wait()


def metadata(found: Answered | Pending) -> str:
    assert isinstance(found, Answered)
    return str(json.loads(found.text)["job"]["metadata"]["name"])

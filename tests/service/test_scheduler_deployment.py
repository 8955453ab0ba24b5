"""Tracing processes as they are: Ray actors that have traced many jobs, take too long, and are killed."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from planner.job.schema import Cluster, Decoder, Eval, Gpu, Job, Model, Train
from planner.runtime.limits import Limit, Limits
from planner.service.errors import WorkerLostError
from planner.service.orders import PlanMade, build_order
from planner.service.scheduling.tracing_worker import TracingWorker
from planner.tracing.isolated import Isolation
from planner.truth.calibration.interval import Calibration
from planner.units import GIB

GPU = Cluster(gpu=Gpu(name="H100-SXM-80GB", total_bytes=80 * GIB, arch="sm_90"))
DECODER = Job(
    model=Model(decoder=Decoder(layers=2, hidden=64, heads=2, kv_heads=2, ffn=128, vocab=256)),
    train=Train(sequence_length=64, precision="bf16_autocast"),
    cluster=GPU,
)
AN_HOUR = dataclasses.replace(
    DECODER,
    model=Model(decoder=Decoder(layers=48, hidden=64, heads=2, kv_heads=2, ffn=128, vocab=256)),
    train=Train(sequence_length=64, iterations=100_000, eval=Eval(every=50_000)),
)


def test_a_trace_that_takes_too_much_memory_is_ended() -> None:
    worker = TracingWorker(Limits(memory_bytes=100 * 2**20), Isolation())
    found: Any = worker.trace(1, AN_HOUR, 0, 3600.0)
    worker.close()

    assert found.exceeded.limit is Limit.MEMORY


class HandOfTracers:
    """In the place of a Serve handle: dies as often as it is told, then answers."""

    def __init__(self, deaths: int) -> None:
        self.asked: list[float | None] = []
        self.cancelled = 0
        self._deaths = deaths

    @property
    def make(self) -> HandOfTracers:
        return self

    def remote(self, _order: Any, seconds: float | None, _keep: bool) -> HandOfTracers:
        self.asked.append(seconds)
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def __await__(self) -> Any:
        from ray.exceptions import ActorDiedError

        yield from asyncio.sleep(0.05).__await__()
        if len(self.asked) <= self._deaths:
            raise ActorDiedError
        return PlanMade(text="{}")


@pytest.mark.usefixtures("ray_session")
def test_a_replica_asks_once_more_where_the_tracers_died_within_the_time_that_is_left() -> None:
    from planner.service.app import TracingHandle

    hand: Any = HandOfTracers(deaths=1)
    found = asyncio.run(TracingHandle(hand).make(build_order(DECODER, Calibration.none(), b"key"), 600.0, keep=False))

    assert found == PlanMade(text="{}")
    assert 600.0 >= hand.asked[0] > hand.asked[1] > 0.0


@pytest.mark.usefixtures("ray_session")
def test_a_replica_gives_up_where_the_tracers_died_twice() -> None:
    from planner.service.app import TracingHandle

    hand: Any = HandOfTracers(deaths=2)
    with pytest.raises(WorkerLostError):
        asyncio.run(TracingHandle(hand).make(build_order(DECODER, Calibration.none(), b"key"), None, keep=False))


@pytest.mark.usefixtures("ray_session")
def test_a_caller_that_goes_is_told_to_the_tracers() -> None:
    from planner.service.app import TracingHandle

    async def story(handle: TracingHandle) -> None:
        asked = asyncio.create_task(handle.make(build_order(DECODER, Calibration.none(), b"key"), None, keep=False))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    hand: Any = HandOfTracers(deaths=0)
    asyncio.run(story(TracingHandle(hand)))

    assert hand.cancelled == 1

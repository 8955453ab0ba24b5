"""Small jobs, well-behaved and strange ones, and a Ray with two pretended GPUs for those who need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored import new_history

from planner.job.schema import Cluster, Decoder, DpReplicate, Gpu, Input, Job, Metadata, Model, Parallel, Train
from planner.service.history.store import History
from planner.units import MIB

HERE = str(Path(__file__).parent)
H100 = Gpu(name="H100-SXM-80GB", total_bytes=81089 * MIB, arch="sm_90")
MakeJob = Callable[..., Job]


def _job(*, ranks: int = 1, gpu: Gpu = H100, name: str = "small") -> Job:
    """The built-in decoder, so small that its step takes no time."""
    return Job(
        metadata=Metadata(name=name),
        model=Model(decoder=Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)),
        train=Train(micro_batch_size=4, sequence_length=64, iterations=2),
        parallel=Parallel(dp_replicate=DpReplicate(degree=ranks)),
        cluster=Cluster(nodes=1, gpus_per_node=ranks, gpu=gpu),
    )


@pytest.fixture
def job() -> MakeJob:
    return _job


@pytest.fixture
def strange() -> MakeJob:
    """A job whose step does what is said, once it is real."""

    def make(does: str, *, ranks: int = 1, rank: int = -1) -> Job:
        return replace(
            _job(ranks=ranks, name=does),
            model=Model(
                factory="strange_models:Strange", factory_path=HERE, factory_arguments={"does": does, "rank": rank}
            ),
            train=Train(
                micro_batch_size=4,
                iterations=1,
                inputs={"x": Input(shape=(16,)), "labels": Input(shape=(), dtype="int64", maximum=10)},
            ),
        )

    return make


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(new_history(tmp_path)) as opened:
        yield opened


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray with two pretended GPUs: that of the tests of the service if it runs in this session, else its like."""
    import ray

    from planner.service.local_ray import instance_folder, local_ray

    if ray.is_initialized():
        yield
        return
    gpus: dict[str, Any] = {"num_gpus": 2, "labels": {"ray.io/accelerator-type": "H100"}}
    with instance_folder() as folder, local_ray(folder, num_cpus=4, **gpus, log_to_driver=False):
        yield

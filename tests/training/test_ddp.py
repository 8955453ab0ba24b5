"""DistributedDataParallel: buckets and their rebuild, what is told about them, and two processes that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from planner.events import Phase
from planner.job.schema import CheckpointLoad, DpReplicate, Job, Parallel
from planner.training import step

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
MIB = 2**20


def ddp(**arguments: Any) -> Parallel:
    return Parallel(dp_replicate=DpReplicate(degree=2, **arguments))


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_every_argument_arrives(factory_job: JobOf, run: Run) -> None:
    outcome = run(
        factory_job(
            parallel=ddp(
                bucket_cap_mb=3, gradient_as_bucket_view=True, find_unused_parameters=True, broadcast_buffers=False
            )
        )
    )

    assert {key: outcome.ddp[key] for key in (
        "bucket_cap_bytes", "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"
    )} == {
        "bucket_cap_bytes": 3 * MIB, "gradient_as_bucket_view": 1, "find_unused_parameters": 1, "broadcast_buffers": 0,
    }  # fmt: skip


def test_unused_parameters_are_waited_for_unless_they_are_looked_for(factory_job: JobOf, run: Run) -> None:
    run(factory_job("Half", parallel=ddp(find_unused_parameters=True), iterations=3))
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        run(factory_job("Half", parallel=ddp(), iterations=3))


def test_buckets_and_communication_are_told(factory_job: JobOf, run: Run, notebook: Any) -> None:
    watching = notebook()

    run(factory_job("normed", parallel=ddp(), iterations=3), watching)

    assert watching.regions == [
        ("communication", "init_sync"), ("bucket", "ddp"),
        ("bucket", "ddp"), ("communication", "buffers"),
        ("bucket", "ddp"), ("communication", "buffers"),
        ("bucket", "ddp"), ("communication", "buffers"),
    ]  # fmt: skip


def test_a_gradient_that_is_a_view_of_its_bucket_stays_a_bucket(factory_job: JobOf, run: Run, notebook: Any) -> None:
    def gradients_told(**train: Any) -> int:
        watching = notebook()
        view = ddp(gradient_as_bucket_view=True)
        run(factory_job(parallel=view, iterations=3, **train), watching)
        return len(watching.names("gradient"))

    # Dropped gradients are born again outside the bucket in every iteration, kept ones only in the first.
    assert gradients_told(zero_grad_set_to_none=True) == 3 * 6
    assert gradients_told(zero_grad_set_to_none=False) == 6


@pytest.mark.parametrize("hook", ["fp16_compress", "bf16_compress", "power_sgd"])
def test_communication_hooks_run_and_are_told(
    factory_job: JobOf, run: Run, notebook: Any, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # PowerSGD waits for a GPU where there is one
    watching = notebook()

    outcome = run(factory_job(parallel=ddp(comm_hook=hook), iterations=2), watching)

    name = {"power_sgd": "powerSGD_hook"}.get(hook, f"{hook}_hook")
    assert outcome.ddp["comm_hook"] == name
    assert ("communication", name) in watching.regions


def test_a_checkpoint_goes_into_the_wrapped_model(factory_job: JobOf, run: Run, notebook: Any) -> None:
    watching = notebook()
    run(factory_job(parallel=ddp(), checkpoint_load=CheckpointLoad(), iterations=1), watching)

    assert watching.marks[:2] == [(Phase.LOAD.value, 0), (Phase.CHECKPOINT_LOAD.value, 0)]

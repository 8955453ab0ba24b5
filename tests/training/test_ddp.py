"""DistributedDataParallel with the arguments of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from planner.errors import SpecError
from planner.job.schema import CheckpointLoad, DpReplicate, Job, Parallel
from planner.training import step
from tests.fakes.process_groups import gloo_group_of_one

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
MIB = 2**20


def ddp(**arguments: Any) -> Parallel:
    return Parallel(dp_replicate=DpReplicate(degree=2, **arguments))


def account_of(outcome: step.Outcome) -> Any:
    """What the reducer says of itself."""
    return outcome.model._get_ddp_logging_data()  # type: ignore[operator]


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with gloo_group_of_one():
        yield


def test_every_argument_arrives(factory_job: JobOf, run: Run) -> None:
    passed_on = {"find_unused_parameters": True, "broadcast_buffers": False}
    arguments = ddp(bucket_cap_mb=3, gradient_as_bucket_view=True, arguments=passed_on)

    account = account_of(run(factory_job(parallel=arguments)))

    assert {key: account[key] for key in (
        "bucket_cap_bytes", "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"
    )} == {
        "bucket_cap_bytes": 3 * MIB, "gradient_as_bucket_view": 1, "find_unused_parameters": 1, "broadcast_buffers": 0,
    }  # fmt: skip


def test_an_argument_that_torch_does_not_have_is_refused(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError, match="DistributedDataParallel does not take the argument 'find_unused'") as refused:
        run(factory_job(parallel=ddp(arguments={"find_unused": True})))

    assert (refused.value.place, refused.value.remedy) == (
        "parallel.dp_replicate.find_unused",
        "did you mean `find_unused_parameters`?",
    )


def test_unused_parameters_are_waited_for_unless_they_are_looked_for(factory_job: JobOf, run: Run) -> None:
    run(factory_job("Half", parallel=ddp(arguments={"find_unused_parameters": True}), iterations=3))
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        run(factory_job("Half", parallel=ddp(), iterations=3))


def test_a_checkpoint_goes_into_the_wrapped_model(factory_job: JobOf, run: Run) -> None:
    plain = run(factory_job(parallel=ddp())).model.state_dict()
    loaded = run(factory_job(parallel=ddp(), checkpoint_load=CheckpointLoad())).model.state_dict()

    assert all(torch.equal(plain[name], loaded[name]) for name in plain)

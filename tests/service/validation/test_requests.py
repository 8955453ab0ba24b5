"""A request is read strictly, and comes back from the history as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.errors import SpecError
from planner.job.schema import Job, Parallel, Trainer
from planner.records import to_plain
from planner.runtime.walls import Walls
from planner.service.validation.requests import Device, Mode, Request, build_request, check_keys, from_json
from planner.service.validation.validation_run import choose_isolation
from planner.tracing.isolated import Isolation

MakeJob = Callable[..., Job]


def test_what_is_not_said_is_one_rank_of_each_class_on_a_gpu(job: MakeJob) -> None:
    assert build_request({}, job(ranks=4)) == Request(
        job=job(ranks=4), ranks=(0,), mode=Mode.AUTO, device=Device.CUDA, plan_id=""
    )


def test_a_request_comes_back_as_it_was_written(job: MakeJob) -> None:
    asked = build_request({"ranks": [1, 0], "mode": "real_peers", "device": "cpu"}, job(ranks=2), "pl-x")
    assert from_json(to_plain(asked)) == asked


@pytest.mark.parametrize(
    ("body", "problem", "place"),
    [
        ({"mode": "fast"}, "'fast' is not a mode", "mode"),
        ({"mode": ["auto"]}, "\"['auto']\" is not a mode", "mode"),
        ({"device": "tpu"}, "'tpu' is not a device", "device"),
        ({"ranks": 1}, "ranks must be a list of ranks", "ranks"),
        ({"ranks": []}, "ranks must be a list of ranks", "ranks"),
        ({"ranks": list(range(17))}, "ranks must be a list of ranks", "ranks"),
        ({"ranks": [4]}, "4 cannot be one of the ranks", "ranks"),
        ({"ranks": [-1]}, "-1 cannot be one of the ranks", "ranks"),
        ({"ranks": [0, 0]}, "0 cannot be one of the ranks", "ranks"),
        ({"ranks": [True]}, "True cannot be one of the ranks", "ranks"),
        ({"ranks": ["0"]}, "0 cannot be one of the ranks", "ranks"),
    ],
)
def test_what_cannot_be_is_said(body: dict[str, Any], problem: str, place: str, job: MakeJob) -> None:
    with pytest.raises(SpecError) as said:
        build_request(body, job(ranks=4))
    assert (said.value.problem, said.value.place) == (problem, place)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"plan": "pl-x"}, "there is no key `plan`"),
        ({}, "a validation is of one thing"),
        ({"plan_id": "pl-x", "job": {}}, "a validation is of one thing"),
    ],
)
def test_it_is_of_a_plan_or_of_a_job(body: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as said:
        check_keys(body)
    assert said.value.problem == problem


def test_code_that_a_job_brings_is_run_behind_walls_and_no_other(job: MakeJob, strange: MakeJob) -> None:
    walled = Isolation(walls=Walls(readable=("/models",)))
    assert choose_isolation(job(), walled).walls is None
    for brings in (strange("nothing"), replace(job(), trainer=Trainer())):
        assert choose_isolation(brings, walled).walls == Walls(readable=("/models",))


def test_any_rank_of_a_trainers_cluster_may_be_asked_for(job: MakeJob) -> None:
    of_trainer = replace(job(ranks=4), parallel=Parallel(), trainer=Trainer())
    assert build_request({"ranks": [3]}, of_trainer).ranks == (3,)
    assert build_request({}, of_trainer).ranks == (0,)

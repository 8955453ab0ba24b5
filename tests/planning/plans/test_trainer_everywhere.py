"""A spec with `trainer` goes wherever any spec goes: it is drawn, searched, advised, and planned behind walls."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from config_files import ZERO_2
from program_runs import forked_ranks, run_planner
from trainer_jobs import FLAGS, job_of, spec_of

import planner
from planner import cli
from planner.errors import SpecError
from planner.job.loading import bundle
from planner.job.schema import Gpu, Job
from planner.planning.plan import plan_job
from planner.report.statement import Verdict, from_json, to_json
from planner.runtime.messages import AnswerWriter
from planner.searching import sweeping
from planner.searching.advice import advise
from planner.searching.exact_plans import PlansHere
from planner.searching.extremes import largest
from planner.searching.requests import SearchRequest, axes_of
from planner.searching.space import Space
from planner.service.orders import build_order, code_isolation
from planner.service.scheduling import plan_tasks
from planner.settings import Settings
from planner.truth.calibration.interval import Calibration

BATCH, STEPS = "trainer.arguments.per_device_train_batch_size", "trainer.arguments.gradient_accumulation_steps"
CHECKPOINTING = "trainer.arguments.gradient_checkpointing"


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    with forked_ranks():
        yield


def on(job: Job, total_bytes: int) -> Job:
    gpu = Gpu(total_bytes=total_bytes, arch="sm_90")
    return replace(job, cluster=replace(job.cluster, gpu=gpu))


def test_a_plan_says_the_job_and_the_command_and_comes_back(tmp_path: Path) -> None:
    job = job_of(tmp_path, 2, arguments=FLAGS)

    result = plan_job(job)

    assert result.plan.job == bundle(job)
    assert result.plan.command[-2:] == ("planner.programs.trainer", "job.json")
    assert [each.representative for each in result.plan.rank_classes] == [
        traced.rank_class.representative for traced in result.traces
    ]
    assert from_json(json.loads(json.dumps(to_json(result.plan)))) == result.plan
    assert result.plan.step is None or result.plan.step.tokens_per_second > 0


def test_it_is_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page, snapshot = tmp_path / "page.html", tmp_path / "rank.pickle"
    words = ["--timeline", str(page), "--snapshot", str(snapshot), "--no-advice"]

    assert run_planner(capfd, "plan", str(spec_of(tmp_path, 1, arguments=FLAGS)), *words).returncode == 0

    assert "backward" in page.read_text(encoding="utf-8")
    (device,) = pickle.loads(snapshot.read_bytes())["device_traces"]
    assert {"alloc", "free_completed"} <= {event["action"] for event in device}


def test_a_search_varies_what_its_files_say_in_their_words(tmp_path: Path) -> None:
    job = job_of(tmp_path, arguments=FLAGS)
    axes = ("micro_batch_size=1,2", "recompute=none,full", "sequence_length=64", "allocator=default")

    space = SearchRequest(job=job, axes=axes, global_batch=4).space()
    changes = [space.candidate(number).change for number in range(space.size)]  # type: ignore[union-attr]

    assert changes == [
        {"train.sequence_length": 64, **change}
        for change in (
            {BATCH: 1, CHECKPOINTING: False, STEPS: 4},
            {CHECKPOINTING: False, STEPS: 2},
            {BATCH: 1, CHECKPOINTING: True, STEPS: 4},
            {CHECKPOINTING: True, STEPS: 2},
        )
    ]


def test_a_search_varies_the_stage_of_zero(tmp_path: Path) -> None:
    job = job_of(tmp_path, 2, arguments={**FLAGS, "deepspeed": ZERO_2})

    space = SearchRequest(
        job=job, axes=("zero=1,3", "micro_batch_size=2", "recompute=none", "allocator=default")
    ).space()
    varied = [space.candidate(number).job.trainer for number in range(space.size)]  # type: ignore[union-attr]

    assert [each and each.arguments["deepspeed"] for each in varied] == [
        {**ZERO_2, "zero_optimization": {**ZERO_2["zero_optimization"], "stage": stage}} for stage in (1, 3)
    ]


def test_every_point_of_a_sweep_is_the_plan_of_that_job(tmp_path: Path) -> None:
    job = job_of(tmp_path, arguments=FLAGS)
    space = Space.varying(job, axes_of(["batch=1,4", "trainer.arguments.optim=sgd"], sweeping.STEP))

    points = sweeping.sweep(space, PlansHere()).points

    for point, size in zip(points, (1, 4), strict=True):
        changed = job_of(tmp_path, arguments={**FLAGS, "per_device_train_batch_size": size, "optim": "sgd"})
        (rank_class,) = plan_job(changed).plan.rank_classes
        assert point.exact is not None
        assert point.exact.device_bytes == rank_class.peak.device_bytes


def test_the_largest_micro_batch_fits_and_the_next_does_not(tmp_path: Path) -> None:
    job = job_of(tmp_path, arguments={**FLAGS, "per_device_train_batch_size": 192})
    room = plan_job(job).plan.rank_classes[0].peak.device_bytes

    found = largest(on(job, room), "micro_batch_size", PlansHere(), step=64)

    assert (found.value, found.beyond is not None and found.beyond.fits) == (192, False)


@pytest.mark.parametrize("axis", ["tp=1,2", "optimizer=SGD", "recompute=selective", "dp_shard=1..8"])
def test_what_its_files_decide_in_other_words_is_refused_with_what_to_vary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], axis: str
) -> None:
    path = str(spec_of(tmp_path, 2, arguments=FLAGS))

    for command in ("search", "sweep"):
        assert cli.main([command, path, axis]) == 2
        assert re.search(
            r"cannot be varied so: the files of a job with `trainer` decide it\n  allowed: micro_batch_size, "
            r"(.|\n)*change:  vary the key that says it there, as trainer\.arguments\.optim=",
            capsys.readouterr().err,
        )


def test_advice_says_keys_of_its_files_each_proven_by_a_plan(tmp_path: Path) -> None:
    arguments = {**FLAGS, "per_device_train_batch_size": 256}
    job = job_of(tmp_path, arguments=arguments)
    checkpointed = job_of(tmp_path, arguments={**arguments, "gradient_checkpointing": True})
    needed, less = (plan_job(each).plan.rank_classes[0].peak.device_bytes for each in (job, checkpointed))

    advised = advise(on(job, (needed + less) // 2), PlansHere(), widely=False)

    found: dict[str, Verdict] = {json.dumps(each.change): each.verdict for each in advised.advice}
    assert json.dumps({CHECKPOINTING: True}) in found
    assert json.dumps({BATCH: 128, STEPS: 2}) in found
    assert Verdict.EXCEEDS not in found.values()


def test_a_service_plans_it_behind_walls_as_the_command_does_and_keeps_no_trace(tmp_path: Path) -> None:
    job = job_of(tmp_path, arguments={**FLAGS, "gradient_checkpointing": True})
    order = build_order(job, Calibration.none(), b"key")
    parts: dict[str, bytes] = {}

    class Answer(AnswerWriter):
        def __init__(self) -> None:
            pass

        def write(self, name: str, content: bytes) -> None:
            parts[name] = content

    plan_tasks.make_plan((order, code_isolation(Settings(factories_as_root=True))), Answer())

    assert parts.keys() == {plan_tasks.PLAN}
    made, here = pickle.loads(parts[plan_tasks.PLAN]), plan_job(job, Calibration.none()).plan
    assert (made.plan_id, made.trace_id) == (order.plan_id, order.trace_id)
    assert made.rank_classes == here.rank_classes


def test_python_searches_and_checks_it(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, 1, arguments=FLAGS)

    assert planner.check(spec).fits
    with pytest.raises(SpecError, match="cannot be varied so"):
        planner.search(spec, axes={"tp": [1, 2]})

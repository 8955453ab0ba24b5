"""What was measured, by validations and by jobs that reported, becomes the calibration in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planner.events import Alloc, Mark, Phase
from planner.job.layout import Mesh, rank_classes
from planner.job.overhead import outside_of
from planner.job.schema import Allocator, Job
from planner.planning.judging import RankTrace
from planner.planning.plan import plan_from_traces
from planner.report.statement import Plan
from planner.service.history.job_table import JobChange, MeasuredRank
from planner.service.history.records import Validation, ValidationState
from planner.service.history.store import History
from planner.service.validation.calibration_learning import CalibrationLearner, learn_calibration
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.interval import Calibration, from_json
from planner.truth.calibration.observation import Observation, make_observation
from planner.units import GIB, MIB

MakeJob = Callable[..., Job]
BEGUN = datetime(2026, 1, 2, tzinfo=UTC)
PREDICTED = 40 * GIB


def planned(job: Job) -> Plan:
    (first,) = rank_classes(Mesh.of(job.parallel))
    events = (Mark(Phase.LOAD, 0), Alloc(0, PREDICTED, 0, None))
    return plan_from_traces(job, [RankTrace(first, Trace(events=events))]).plan


def seen(number: int = 0, *, measured: int = 41 * GIB, **more: Any) -> Observation:
    figures: dict[str, Any] = {
        "gpu": "H100-SXM-80GB", "torch": "2.13.0+cu130", "case": f"case {number}",
        "reserved_bytes": (PREDICTED, measured), "date": f"2026-01-{number + 1:02d}",
    }  # fmt: skip
    return make_observation(**{**figures, **more})


def validation(number: int, observation: Observation | None, **more: Any) -> Validation:
    rank = {"rank": 0, "observation": None if observation is None else dataclasses.asdict(observation)}
    about = Validation(
        validation_id=f"va-{number}", plan_id="", state=ValidationState.DONE, asked_at=BEGUN + timedelta(hours=number),
        gpu="H100-SXM-80GB", torch="2.13.0", error_percent=2.0, result={"ranks": [rank]},
    )  # fmt: skip
    return dataclasses.replace(about, **more)


def report(**more: Any) -> Mapping[str, Any]:
    """As the callback tells it."""
    return {
        "rank": 0, "world_size": 1, "steps": 500, "out_of_memory": "", "allocator_conf": "",
        "gpu": {"name": "NVIDIA H100 80GB HBM3", "total_bytes": 81089 * MIB, "uuid": "GPU-1"},
        "software": {"torch": "2.13.0+cu130", "cuda": "13.0"}, "device_bytes_by": "process", **more,
    }  # fmt: skip


def told(
    history: History,
    plan: Plan,
    job_id: str = "1",
    rank: int = 0,
    *,
    reserved: int = 42 * GIB,
    held: int = 600 * MIB,
    **more: Any,
) -> None:
    history.plans.put(plan)
    change = JobChange(
        plan_id=plan.plan_id, started_at=BEGUN,
        measured=(MeasuredRank(rank=rank, reserved_bytes=reserved, device_bytes=reserved + held),),
        reports={rank: report(rank=rank, **more)},
    )  # fmt: skip
    history.jobs.bind("slurm", job_id, change)


def current(history: History) -> Calibration:
    stored = history.calibrations.current()
    assert stored is not None
    return from_json(stored.document)


def test_nothing_measured_is_nothing_learnt(history: History) -> None:
    assert CalibrationLearner(history).refresh() is None
    assert history.calibrations.current() is None


def test_a_validation_on_a_gpu_becomes_the_calibration_in_use(history: History) -> None:
    history.validations.put(validation(1, seen()))
    found = CalibrationLearner(history).refresh()
    assert found == current(history)
    assert found == learn_calibration([seen()])
    (correction,) = current(history).corrections
    assert (correction.gpu, correction.torch, correction.reserved.measurements) == ("H100-SXM-80GB", "2.13", 1)
    assert correction.reserved.median == pytest.approx(0.025)


def test_learning_the_same_again_stores_nothing(history: History) -> None:
    history.validations.put(validation(1, seen()))
    learning = CalibrationLearner(history)
    assert learning.refresh() is not None
    assert learning.refresh() is None
    assert CalibrationLearner(history).refresh() is None  # nor does a successor
    assert len(history.calibrations.newest()) == 1


def test_each_new_measurement_is_learnt(history: History) -> None:
    learning = CalibrationLearner(history)
    for number in range(3):
        history.validations.put(validation(number, seen(number)))
        assert learning.refresh() is not None
    assert current(history).corrections[0].reserved.measurements == 3
    stored = history.calibrations.current()
    assert stored is not None
    assert stored.measurements == 3


@pytest.mark.parametrize(
    "other",
    [
        validation(1, None, gpu="cpu"),
        validation(1, seen(), gpu="cpu"),
        validation(1, seen(), state=ValidationState.FAILED),
        validation(1, seen(), result={"ranks": [{"rank": 0, "observation": {"gpu": "from another planner"}}]}),
    ],
    ids=["on a processor", "on a processor, whatever it says", "failed", "of another planner"],
)
def test_what_was_not_measured_on_a_gpu_to_the_end_teaches_nothing(other: Validation, history: History) -> None:
    history.validations.put(other)
    assert CalibrationLearner(history).refresh() is None


def test_a_job_that_reports_teaches_reserved_context_and_nccl(history: History, job: MakeJob) -> None:
    told(history, planned(job()))
    told(history, planned(job(ranks=8)), "2", held=1500 * MIB, world_size=8)
    CalibrationLearner(history).refresh()
    (correction,) = current(history).corrections
    assert correction.reserved.median == pytest.approx(0.05)
    outside = outside_of(job())
    assert correction.context is not None
    assert correction.context.median == pytest.approx(600 * MIB / outside.cuda_context_bytes - 1)
    assert correction.nccl is not None
    assert correction.nccl.measurements == 1


def test_of_a_rank_class_the_rank_that_reserved_the_most_speaks(history: History, job: MakeJob) -> None:
    plan = planned(job(ranks=8))
    for rank, reserved in enumerate([41 * GIB, 44 * GIB, 42 * GIB]):
        told(history, plan, rank=rank, reserved=reserved, held=1500 * MIB, world_size=8)
    CalibrationLearner(history).refresh()
    (correction,) = current(history).corrections
    assert (correction.reserved.measurements, correction.reserved.median) == (1, pytest.approx(0.1))


def test_a_calibrated_plan_teaches_the_same_as_an_uncalibrated_one(history: History, job: MakeJob) -> None:
    (first,) = rank_classes(Mesh.of(job().parallel))
    events = (Mark(Phase.LOAD, 0), Alloc(0, PREDICTED, 0, None))
    calibration = learn_calibration(
        [seen(number, device_bytes=43 * GIB, predicted_context_bytes=500 * MIB) for number in range(9)]
    )
    calibrated = plan_from_traces(job(), [RankTrace(first, Trace(events=events))], calibration).plan
    assert calibrated.rank_classes[0].outside_allocator.cuda_context_bytes != outside_of(job()).cuda_context_bytes
    told(history, planned(job()))
    CalibrationLearner(history).refresh()
    expected = current(history)
    with History.open("sqlite://") as other:
        told(other, calibrated)
        CalibrationLearner(other).refresh()
        assert current(other).corrections == expected.corrections


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"steps": 2}, "the job has done 2 iterations; from 3 on it holds all that it will hold"),
        ({"gpu": {"total_bytes": 40 * GIB}}, "it ran on a GPU of 40.00 GiB, planned was one of 79.19 GiB"),
        ({"allocator_conf": "backend:native"}, "it ran with PYTORCH_ALLOC_CONF 'backend:native', planned was ''"),
        ({"world_size": 4}, "it ran with 4 ranks, planned were 1"),
        ({"out_of_memory": "CUDA out of memory."}, "the measured step ran out of memory"),
    ],
)  # fmt: skip
def test_a_job_that_ran_otherwise_is_set_aside_with_the_reason(
    more: dict[str, Any], reason: str, history: History, job: MakeJob
) -> None:
    told(history, planned(job()), **more)
    CalibrationLearner(history).refresh()
    found = current(history)
    assert found.corrections == ()
    assert [each.reason for each in found.quarantined] == [reason]
    assert found.quarantined[0].observation.case == "slurm/1#0"


def test_an_outlier_is_set_aside_and_does_not_move_the_others(history: History) -> None:
    for number in range(9):
        history.validations.put(validation(number, seen(number)))
    history.validations.put(validation(9, seen(9, measured=70 * GIB)))
    CalibrationLearner(history).refresh()
    found = current(history)
    assert found.corrections[0].reserved.median == pytest.approx(0.025)
    assert [each.observation.case for each in found.quarantined] == ["case 9"]


@pytest.mark.parametrize(
    "broken", [{"gpu": 7}, {"steps": "many"}, {"software": ["torch"]}, {"world_size": None}], ids=str
)
def test_a_report_of_a_wrong_form_teaches_nothing_and_breaks_nothing(
    broken: dict[str, Any], history: History, job: MakeJob
) -> None:
    told(history, planned(job()), **broken)
    history.validations.put(validation(1, seen()))
    CalibrationLearner(history).refresh()
    assert current(history) == learn_calibration([seen()])


def test_what_a_job_tells_later_is_learnt_later(history: History, job: MakeJob) -> None:
    learning = CalibrationLearner(history)
    plan = planned(job())
    told(history, plan, reserved=41 * GIB)
    learning.refresh()
    told(history, plan, reserved=44 * GIB)
    learning.refresh()
    (correction,) = current(history).corrections
    assert (correction.reserved.measurements, correction.reserved.median) == (1, pytest.approx(0.1))


def test_the_settings_of_the_job_are_compared_with_what_ran(history: History, job: MakeJob) -> None:
    conf = "expandable_segments:True"
    told(history, planned(dataclasses.replace(job(), allocator=Allocator(conf=conf))), allocator_conf=conf)
    CalibrationLearner(history).refresh()
    assert len(current(history).corrections) == 1


def test_a_job_planned_by_running_its_program_teaches_what_one_planned_by_a_spec_does(
    history: History, job: MakeJob
) -> None:
    plan = planned(job())
    ran = Plan(
        plan_id="pl-" + "r" * 26, trace_id="run-1", command=("python", "t.py"), gpu="H100-SXM-80GB", nodes=1,
        gpus_per_node=1, ending="ended", iterations=3, seen={}, unseen=(), allocator_conf="", calibrated=False,
        rank_classes=plan.rank_classes, assumptions=(), out_of_memory=(), provenance=plan.provenance,
    )  # fmt: skip
    told(history, ran)
    with History.open("sqlite://") as other:
        told(other, plan)
        by_spec = CalibrationLearner(other).refresh()

    by_run = CalibrationLearner(history).refresh()

    assert by_run is not None
    assert by_run == by_spec
    bound = history.jobs.get("slurm", "1")
    assert bound is not None
    assert (bound.plan_id, bound.measured[0].reserved_bytes) == (ran.plan_id, 42 * GIB)

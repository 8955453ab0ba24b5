"""Compares each rank's measurement with its plan, and learns the calibration from what the history holds of both."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from planner.errors import MeasureError, PlannerError
from planner.events import Event
from planner.job.overhead import OutsideEstimate, outside
from planner.job.rank_sets import RankSet
from planner.job.schema import Gpu, Software
from planner.report.statement import Plan, RankClassStatement, Verdict
from planner.service.history.job_changes import BoundJob, MeasuredRank
from planner.service.history.store import History
from planner.service.validation.predicted import Predicted, predicted_of
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import learn, measured_observations
from planner.truth.calibration.observation import Observation, QuarantinedObservation, make_observation
from planner.truth.comparison import Comparison, Figure, to_json
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.truth.plan_comparison import with_measurement
from planner.units import show_bytes

ALIKE = 0.03
"""By how much the memory of two GPUs of one kind differs, relative: 200 MiB between drivers (hardware/gpus.py), and
ECC; 40 GB from 80 GB it tells in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """One rank, predicted without a calibration and measured. `outside` is the prediction's, of what really ran."""

    plan: Plan
    events: Sequence[Event]
    measurement: Measurement
    outside: OutsideEstimate
    gpu: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a validation found. `problem` says why it cannot be believed, if it cannot."""

    document: Mapping[str, Any]
    error_percent: float | None
    out_of_memory: bool
    torch: str
    problem: str = ""
    comparisons: tuple[Comparison, ...] = ()
    """Those of the ranks, as values."""


def compare_ranks(ranks: Sequence[RankComparison], mode: str) -> Result:
    """The result of all ranks that were asked for, at least one.

    Raises MeasureError if they were measured on a GPU that is not the job's.
    """
    for each in ranks:
        check_device(each.gpu, each.measurement.device)
    compared = [with_measurement(each.plan, each.measurement, events=each.events) for each in ranks]
    doubted = [each for each in ranks if each.measurement.truth is not None and not each.measurement.truth.believed]
    out_of_memory = any(each.measurement.out_of_memory is not None for each in ranks)
    error = None if doubted or out_of_memory else _error(ranks, compared)
    first = ranks[0].measurement
    document = {
        "mode": mode,
        "device": dataclasses.asdict(first.device),
        "software": dict(first.software),
        "error_percent": error,
        "error_of": error_of(first),
        "out_of_memory": out_of_memory,
        "ranks": [_rank(each, comparison) for each, comparison in zip(ranks, compared, strict=True)],
    }
    return Result(
        document=document,
        error_percent=error,
        out_of_memory=out_of_memory,
        torch=first.software.get("torch", ""),
        problem=_doubt([each.measurement.rank for each in doubted]) if doubted else "",
        comparisons=tuple(compared),
    )


def error_of(measurement: Measurement) -> str:
    """Of which figure the error is told: a CPU has nothing but requested bytes."""
    return "requested" if measurement.device.kind == "cpu" else "reserved"


def check_device(gpu: Gpu, device: DeviceFacts) -> None:
    """Raises MeasureError for a GPU that is not the job's, by architecture or by memory; a CPU is anybody's."""
    if device.kind == "cpu":
        return
    wanted = f"{gpu.name or gpu.arch}, {show_bytes(gpu.total_bytes)}"
    there = f"it was {device.name} with {show_bytes(device.total_bytes)} ({device.arch})"
    other_arch = gpu.arch.startswith("sm_") and device.arch != gpu.arch
    if other_arch or abs(device.total_bytes - gpu.total_bytes) > ALIKE * gpu.total_bytes:
        raise MeasureError(
            f"the GPU that Ray gave is not the job's: {there}",
            allowed=wanted,
            remedy="give the nodes a label ray.io/accelerator-type that tells these GPUs apart, or name the GPU there",
        )


def observation_of(beside: RankComparison) -> Observation | None:
    """What the comparison can teach; None for a CPU, and for a GPU that has no name."""
    measured = beside.measurement
    if measured.device.kind == "cpu" or not beside.gpu.name:
        return None
    statement = _statement(beside.plan, measured.rank)
    present = measured.peers == "present"
    return make_observation(
        gpu=beside.gpu.name,
        torch=measured.software.get("torch", ""),
        cuda=measured.software.get("cuda", ""),
        world_size=measured.world_size,
        case=measured.case or beside.plan.plan_id,
        reserved_bytes=(statement.peak.reserved_bytes, measured.peak.reserved_bytes),
        predicted_context_bytes=beside.outside.cuda_context_bytes,
        predicted_nccl_bytes=beside.outside.nccl_bytes if present else 0,
        device_bytes=_device_bytes(measured),
        device_bytes_by=measured.device_bytes_by,
        device_total_bytes=measured.device.total_bytes,
        peers=measured.peers,
        predicted_out_of_memory=statement.verdict is Verdict.EXCEEDS,
        measured_out_of_memory=measured.out_of_memory is not None,
        date=measured.date,
    )


def _rank(beside: RankComparison, comparison: Comparison) -> dict[str, Any]:
    measured, statement = beside.measurement, _statement(beside.plan, beside.measurement.rank)
    learnt = observation_of(beside)
    out = measured.out_of_memory
    return {
        "rank": measured.rank,
        "peers": measured.peers,
        "seconds": measured.seconds,
        "comparison": to_json(comparison),
        "predicted_verdict": "" if measured.device.kind == "cpu" else statement.verdict.value,
        "out_of_memory": dataclasses.asdict(out) if out is not None else None,
        "device_bytes_by": measured.device_bytes_by,
        "context_bytes": measured.context_bytes,
        "observation": dataclasses.asdict(learnt) if learnt is not None else None,
    }


def _error(ranks: Sequence[RankComparison], compared: Sequence[Comparison]) -> float | None:
    """That of the worst rank."""
    found = [_of(comparison.peak, error_of(each.measurement)) for each, comparison in zip(ranks, compared, strict=True)]
    known = [each for each in found if each is not None]
    return round(max(known), 4) if known else None


def _of(figures: Sequence[Figure], name: str) -> float | None:
    return next((figure.error_percent for figure in figures if figure.name == name), None)


def _device_bytes(measured: Measurement) -> int:
    return max((each.device_bytes for each in measured.phases), default=0)


def _statement(plan: Plan, rank: int) -> RankClassStatement:
    return next(each for each in plan.rank_classes if rank in RankSet.parse(each.ranks))


def _doubt(ranks: Sequence[int]) -> str:
    whose = ", ".join(map(str, ranks))
    return f"the measurement of rank {whose} cannot be believed: its runs disagree, or the profiler missed something"


MOST = 10_000
"""Observations, the newest."""
MOST_QUARANTINED = 500
"""Kept in a calibration for people to read, the newest."""
FEWEST_STEPS = 3
"""Before its third iteration a job has not held all that it will hold."""

_log = logging.getLogger("planner.service.validation")


class CalibrationLearner:
    """Reads each measurement of a history once, and puts what follows from all of them back into it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._validations: dict[str, tuple[Observation, ...]] = {}
        self._jobs: dict[tuple[str, str, datetime], tuple[Observation | QuarantinedObservation, ...]] = {}

    def refresh(self) -> Calibration | None:
        """The calibration if it is a new one, stored as the current one; None if nothing new follows.

        Raises HistoryError if the history cannot be read or written; then the next call goes on from there.
        """
        if not self._read_what_is_new():
            return None
        found = learn_calibration([*self._from_validations(), *self._from_jobs()])
        current = self._history.calibrations.current()
        told = interval.to_json(found)
        if not (found.corrections or found.quarantined) or (current is not None and current.document == told):
            return None
        measurements = sum(each.reserved.measurements for each in found.corrections)
        self._history.calibrations.put(found.id, told, measurements)
        return found

    def _read_what_is_new(self) -> bool:
        validations = self._history.measured_validations(MOST)
        jobs = [(each.system, each.job_id, each.updated_at) for each in self._history.measured_jobs(MOST)]
        if validations == tuple(self._validations) and jobs == list(self._jobs):
            return False
        self._validations = {
            each: self._validations[each] if each in self._validations else self._of_validation(each)
            for each in validations
        }
        self._jobs = {key: self._jobs[key] if key in self._jobs else self._of_job(*key[:2]) for key in jobs}
        return True

    def _from_validations(self) -> Iterator[Observation]:
        for each in self._validations.values():
            yield from each

    def _from_jobs(self) -> Iterator[Observation | QuarantinedObservation]:
        for each in self._jobs.values():
            yield from each

    def _of_validation(self, validation_id: str) -> tuple[Observation, ...]:
        found = self._history.validations.get(validation_id)
        return tuple(observations_of(found.result)) if found is not None else ()

    def _of_job(self, system: str, job_id: str) -> tuple[Observation | QuarantinedObservation, ...]:
        job = self._history.jobs.get(system, job_id)
        interval = self._history.plans.document(job.plan_id) if job is not None else None
        if job is None or interval is None:
            return ()
        try:
            return tuple(observe_job(job, self._history.jobs.reports(system, job_id), predicted_of(interval)))
        except (PlannerError, ValueError, TypeError, AttributeError, KeyError) as error:
            _log.warning("the reports of job %s of %s teach nothing: %s", job_id, system, error)
            return ()


def learn_calibration(seen: list[Observation | QuarantinedObservation]) -> Calibration:
    """What the newest of these teach; what was set aside before stands with what learning sets aside."""
    newest = sorted(seen, key=_date, reverse=True)[:MOST]
    found = learn([*measured_observations(), *(each for each in newest if isinstance(each, Observation))])
    aside = {*found.quarantined, *(each for each in newest if isinstance(each, QuarantinedObservation))}
    kept = sorted(sorted(aside, key=_date, reverse=True)[:MOST_QUARANTINED], key=repr)
    found = dataclasses.replace(found, quarantined=tuple(kept))
    return dataclasses.replace(found, id=interval.digest(found)) if found.corrections else found


def observations_of(result: Mapping[str, Any]) -> Iterator[Observation]:
    """What the result of a validation teaches: nothing if it ran on a CPU."""
    for rank in result.get("ranks", ()):
        figures = rank.get("observation")
        if figures is None:
            continue
        try:
            yield Observation(**figures)
        except TypeError:  # another planner wrote it
            _log.warning("an observation of an earlier validation cannot be read, and teaches nothing")


def observe_job(
    job: BoundJob, reports: Mapping[int, Any], predicted: Predicted
) -> Iterator[Observation | QuarantinedObservation]:
    """What the reports of a job's ranks teach: of each rank class the rank that reserved the most.

    Predicted figures are those of an uncalibrated plan: reserved bytes never hinge on a calibration, and what lives
    outside is asked for anew. Raises SpecError, or what a report of a wrong form raises.
    """
    for statement in predicted.rank_classes:
        ranks = RankSet.parse(statement.ranks)
        told = [each for each in job.measured if each.rank in ranks and each.reserved_bytes and each.rank in reports]
        if told:
            highest = max(told, key=lambda each: (each.reserved_bytes or 0, -each.rank))
            yield _of_rank(job, predicted, statement, highest, reports[highest.rank])


def _of_rank(
    job: BoundJob,
    predicted: Predicted,
    statement: RankClassStatement,
    measured: MeasuredRank,
    report: Mapping[str, Any],
) -> Observation | QuarantinedObservation:
    software = {str(name): str(version) for name, version in report.get("software", {}).items()}
    ran = Software(
        torch=software.get("torch") or predicted.software.torch, cuda=software.get("cuda") or predicted.software.cuda
    )
    world_size = int(report.get("world_size", 1))
    held = outside(predicted.gpu, ran, predicted.communicators)
    out_of_memory = bool(report.get("out_of_memory"))
    seen = make_observation(
        gpu=predicted.gpu.name,
        torch=ran.torch,
        cuda=ran.cuda,
        world_size=world_size,
        case=f"{job.system}/{job.job_id}#{measured.rank}",
        reserved_bytes=(statement.peak.reserved_bytes, measured.reserved_bytes or 0),
        predicted_context_bytes=held.cuda_context_bytes,
        predicted_nccl_bytes=held.nccl_bytes,
        device_bytes=measured.device_bytes or 0,
        device_bytes_by=str(report.get("device_bytes_by", "")),
        device_total_bytes=int(report.get("gpu", {}).get("total_bytes", 0)),
        peers="present" if world_size > 1 else "none",
        predicted_out_of_memory=statement.verdict is Verdict.EXCEEDS,
        measured_out_of_memory=out_of_memory,
        date=job.ended_at.isoformat() if job.ended_at else (job.started_at.isoformat() if job.started_at else ""),
    )
    reason = "" if out_of_memory else _unlike(predicted, seen, report)
    return QuarantinedObservation(observation=seen, reason=reason) if reason else seen


def _unlike(predicted: Predicted, seen: Observation, report: Mapping[str, Any]) -> str:
    """Why what ran is not what was planned; empty if it may be."""
    total, steps = seen.device_total_bytes, int(report.get("steps", 0))
    conf = str(report.get("allocator_conf", ""))
    if steps < FEWEST_STEPS:
        return f"the job has done {steps} iterations; from {FEWEST_STEPS} on it holds all that it will hold"
    if total and abs(total - predicted.gpu.total_bytes) > ALIKE * predicted.gpu.total_bytes:
        there = show_bytes(predicted.gpu.total_bytes)
        return f"it ran on a GPU of {show_bytes(total)}, planned was one of {there}"
    if conf != predicted.allocator_conf:
        return f"it ran with PYTORCH_ALLOC_CONF {conf!r}, planned was {predicted.allocator_conf!r}"
    if seen.world_size != predicted.world_size:
        return f"it ran with {seen.world_size} ranks, planned were {predicted.world_size}"
    return ""


def _date(seen: Observation | QuarantinedObservation) -> tuple[str, str]:
    figures = seen.observation if isinstance(seen, QuarantinedObservation) else seen
    return figures.date, repr(figures)

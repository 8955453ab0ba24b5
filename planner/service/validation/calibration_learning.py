"""Learns the calibration from what the history holds of plans and of what jobs and validations measured."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from planner.errors import PlannerError
from planner.hardware import catalog
from planner.job.layout import Mesh
from planner.job.loading import load_bundle
from planner.job.overhead import outside
from planner.job.rank_sets import RankSet
from planner.job.schema import Gpu, Software
from planner.report.statement import RankClassStatement, Verdict, from_json
from planner.service.history.job_table import BoundJob
from planner.service.history.store import History
from planner.service.validation.validation_run import ALIKE
from planner.truth.calibration import interval
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import learn, measured_observations
from planner.truth.calibration.observation import Observation, QuarantinedObservation, make_observation
from planner.units import show_bytes
from planner.versions import minor_of

MOST = 10_000
MOST_QUARANTINED = 500
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
        validations = self._history.validations.measured(MOST)
        jobs = list(self._history.jobs.measured(MOST))
        if validations == tuple(self._validations) and jobs == list(self._jobs):
            return None
        known = self._validations
        self._validations = {name: known[name] if name in known else self._of_validation(name) for name in validations}
        self._jobs = {key: self._jobs[key] if key in self._jobs else self._of_job(*key[:2]) for key in jobs}
        calibration = learn_calibration([*itertools.chain(*self._validations.values(), *self._jobs.values())])
        current, document = self._history.calibrations.current(), interval.to_json(calibration)
        learnt = bool(calibration.corrections or calibration.quarantined)
        if not learnt or (current is not None and current.document == document):
            return None
        measurements = sum(correction.reserved.measurements for correction in calibration.corrections)
        self._history.calibrations.put(calibration.id, document, measurements)
        return calibration

    def _of_validation(self, validation_id: str) -> tuple[Observation, ...]:
        validation = self._history.validations.get(validation_id)
        observations = []
        for rank in validation.result.get("ranks", ()) if validation is not None else ():
            if (figures := rank.get("observation")) is not None:
                try:
                    observations.append(Observation(**figures))
                except TypeError:  # another planner wrote it
                    _log.warning("an observation of an earlier validation cannot be read, and teaches nothing")
        return tuple(observations)

    def _of_job(self, system: str, job_id: str) -> tuple[Observation | QuarantinedObservation, ...]:
        job = self._history.jobs.get(system, job_id)
        document = self._history.plans.document(job.plan_id) if job is not None else None
        if job is None or document is None:
            return ()
        try:
            return tuple(_observe_job(job, self._history.jobs.reports(system, job_id), _predicted_of(document)))
        except (PlannerError, ValueError, TypeError, AttributeError, KeyError) as error:
            _log.warning("the reports of job %s of %s teach nothing: %s", job_id, system, error)
            return ()


def learn_calibration(observations: list[Observation | QuarantinedObservation]) -> Calibration:
    newest = sorted(observations, key=_date, reverse=True)[:MOST]
    calibration = learn([*measured_observations(), *(known for known in newest if isinstance(known, Observation))])
    aside = {*calibration.quarantined, *(known for known in newest if isinstance(known, QuarantinedObservation))}
    kept = sorted(sorted(aside, key=_date, reverse=True)[:MOST_QUARANTINED], key=repr)
    calibration = dataclasses.replace(calibration, quarantined=tuple(kept))
    return dataclasses.replace(calibration, id=interval.digest(calibration)) if calibration.corrections else calibration


def _date(observation: Observation | QuarantinedObservation) -> tuple[str, str]:
    figures = observation.observation if isinstance(observation, QuarantinedObservation) else observation
    return figures.date, repr(figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predicted:
    """What figures are for, and the figures. `communicators`: sizes of a rank's groups over NCCL."""

    gpu: Gpu
    software: Software
    allocator_conf: str
    world_size: int
    communicators: tuple[int, ...]
    rank_classes: tuple[RankClassStatement, ...]


def _predicted_of(document: Mapping[str, Any]) -> _Predicted:
    """Raises PlannerError for a document that cannot be read."""
    plan = from_json(document)
    if plan.command:
        known = catalog.by_name(plan.gpu)
        return _Predicted(
            gpu=Gpu(name=known.name, total_bytes=known.total_bytes, arch=known.arch) if known else Gpu(name=plan.gpu),
            software=Software(torch=minor_of(plan.provenance.torch)),
            allocator_conf=plan.allocator_conf,
            world_size=plan.nodes * plan.gpus_per_node,
            communicators=plan.communicators,
            rank_classes=plan.rank_classes,
        )
    job = load_bundle(plan.job)
    mesh = Mesh.of(job.parallel)
    return _Predicted(
        gpu=job.cluster.gpu,
        software=job.software,
        allocator_conf=job.allocator.conf,
        world_size=mesh.world_size,
        communicators=tuple(degree for degree in mesh.degrees if degree > 1),
        rank_classes=plan.rank_classes,
    )


def _observe_job(
    job: BoundJob, reports: Mapping[int, Any], predicted: _Predicted
) -> Iterator[Observation | QuarantinedObservation]:
    """What the reports of a job's ranks teach: of each rank class the rank that reserved the most.

    Predicted figures are those of an uncalibrated plan: reserved bytes never hinge on a calibration, and what lives
    outside is asked for anew. Raises SpecError, or what a report of a wrong form raises.
    """
    began_or_ended = job.ended_at or job.started_at
    for rank_class in predicted.rank_classes:
        ranks = RankSet.parse(rank_class.ranks)
        reported = [
            rank for rank in job.measured if rank.rank in ranks and rank.reserved_bytes and rank.rank in reports
        ]
        if not reported:
            continue
        measured = max(reported, key=lambda rank: (rank.reserved_bytes or 0, -rank.rank))
        report = reports[measured.rank]
        software = {str(name): str(version) for name, version in report.get("software", {}).items()}
        ran = Software(
            torch=software.get("torch") or predicted.software.torch,
            cuda=software.get("cuda") or predicted.software.cuda,
        )
        world_size = int(report.get("world_size", 1))
        held = outside(predicted.gpu, ran, predicted.communicators)
        out_of_memory = bool(report.get("out_of_memory"))
        observation = make_observation(
            gpu=predicted.gpu.name,
            torch=ran.torch,
            cuda=ran.cuda,
            world_size=world_size,
            case=f"{job.system}/{job.job_id}#{measured.rank}",
            reserved_bytes=(rank_class.peak.reserved_bytes, measured.reserved_bytes or 0),
            predicted_context_bytes=held.cuda_context_bytes,
            predicted_nccl_bytes=held.nccl_bytes,
            device_bytes=measured.device_bytes or 0,
            device_bytes_by=str(report.get("device_bytes_by", "")),
            device_total_bytes=int(report.get("gpu", {}).get("total_bytes", 0)),
            peers="present" if world_size > 1 else "none",
            predicted_out_of_memory=rank_class.verdict is Verdict.EXCEEDS,
            measured_out_of_memory=out_of_memory,
            date=began_or_ended.isoformat() if began_or_ended else "",
        )
        reason = "" if out_of_memory else _unlike(predicted, observation, report)
        yield QuarantinedObservation(observation=observation, reason=reason) if reason else observation


def _unlike(predicted: _Predicted, observation: Observation, report: Mapping[str, Any]) -> str:
    total, steps = observation.device_total_bytes, int(report.get("steps", 0))
    conf = str(report.get("allocator_conf", ""))
    if steps < FEWEST_STEPS:
        return f"the job has done {steps} iterations; from {FEWEST_STEPS} on it holds all that it will hold"
    if total and abs(total - predicted.gpu.total_bytes) > ALIKE * predicted.gpu.total_bytes:
        there = show_bytes(predicted.gpu.total_bytes)
        return f"it ran on a GPU of {show_bytes(total)}, planned was one of {there}"
    if conf != predicted.allocator_conf:
        return f"it ran with PYTORCH_ALLOC_CONF {conf!r}, planned was {predicted.allocator_conf!r}"
    if observation.world_size != predicted.world_size:
        return f"it ran with {observation.world_size} ranks, planned were {predicted.world_size}"
    return ""

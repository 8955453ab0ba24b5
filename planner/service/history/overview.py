"""Reads everything that metrics export, bounded: a scrape stays small however much is stored.

Where there is more than fits, every plan and every job keeps its share; how much was left out is told.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, zip_longest
from typing import TypeVar

from planner.job.rank_sets import RankSet
from planner.report.statement import Verdict
from planner.service.history.capacity import Capacity
from planner.service.history.counters import SharedFigures
from planner.service.history.job_changes import BoundJob
from planner.service.history.job_table import ActivePlan
from planner.service.history.plan_table import PlanSummary, RankClassSummary
from planner.service.history.records import StoredCalibration, ValidationState
from planner.service.history.store import History

OTHER = "_other"
"""Team, queue and GPU of what was added up because there were too many of them."""
_Member = TypeVar("_Member")
_Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that an overview holds. Together they keep a scrape under one megabyte."""

    rank_classes: int = 800
    categorized: int = 100
    """Rank classes whose categories are told: ten figures each."""
    jobs: int = 200
    gpus: int = 700
    groups: int = 100
    """Of capacity."""
    kinds: int = 50
    """Of GPU and torch, for validations and calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpu:
    """A GPU that a job has. What is not known is empty; `rank_class` is the class's representative."""

    plan_id: str
    rank_class: str
    system: str
    job_id: str
    host: str
    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredClass:
    """The highest device bytes that any rank of a class told of a job that has not ended."""

    plan_id: str
    rank_class: str
    system: str
    job_id: str
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What is known now. `rank_classes` and `categorized` go with the id of their plan; errors are in percent."""

    plan_counts: Mapping[Verdict, int]
    plans: tuple[PlanSummary, ...]
    capacity_bytes: Mapping[str, int]
    rank_classes: tuple[tuple[str, RankClassSummary], ...]
    categorized: tuple[tuple[str, RankClassSummary], ...]
    jobs: tuple[BoundJob, ...]
    gpus: tuple[JobGpu, ...]
    measured: tuple[MeasuredClass, ...]
    capacity: tuple[Capacity, ...]
    check_counts: Mapping[Verdict | None, int]
    validation_counts: Mapping[ValidationState, int]
    errors: Mapping[_Group, tuple[float, ...]]
    calibration: StoredCalibration | None
    figures: SharedFigures
    left_out: Mapping[str, int]
    seconds: float
    """How long the reading took."""


def overview(history: History, bounds: Bounds | None = None) -> Overview:
    """Read it. Raises HistoryUnavailableError if the history cannot be read."""
    most, began = bounds or Bounds(), time.perf_counter()
    active = history.active_plans()
    classes = [[(each.summary.plan_id, one) for one in _fullest(each.rank_classes)] for each in active.plans]
    told, classes_left = _limit_members(classes, most.rank_classes)
    categorized, categorized_left = _limit_members(classes, most.categorized)
    jobs, jobs_left = _limit_members([each.jobs for each in active.plans], most.jobs)
    places = [(each, job, _PlanGpus(each)) for each in active.plans for job in each.jobs]
    gpus, gpus_left = _limit_members([places_of.gpus(job) for _, job, places_of in places], most.gpus)
    measured, measured_left = _limit_members([places_of.find_highest(job) for _, job, places_of in places], most.jobs)
    capacity, groups_left = _fold_smallest(history.capacity(), most.groups)
    errors = history.validations.errors()
    kept = dict(list(errors.items())[: most.kinds])
    return Overview(
        plan_counts=history.plans.counts(),
        plans=tuple(each.summary for each in active.plans),
        capacity_bytes={
            each.summary.plan_id: min(one.capacity_bytes for one in each.rank_classes)
            for each in active.plans
            if each.rank_classes
        },
        rank_classes=tuple(sorted(told, key=_place)),
        categorized=tuple(sorted(categorized, key=_place)),
        jobs=jobs,
        gpus=gpus,
        measured=measured,
        capacity=capacity,
        check_counts=history.checks.counts(),
        validation_counts=history.validations.counts(),
        errors=kept,
        calibration=history.calibrations.current(),
        figures=history.totals.figures(),
        left_out={
            "plan": active.left_out,
            "rank_class": classes_left,
            "categories": categorized_left,
            "job": jobs_left,
            "job_gpu": gpus_left,
            "measured": measured_left,
            "capacity": groups_left,
            "validation": len(errors) - len(kept),
        },
        seconds=time.perf_counter() - began,
    )


class _PlanGpus:
    """Where the ranks of a plan run: found for each of its jobs."""

    def __init__(self, plan: ActivePlan) -> None:
        self._ranks = plan.summary.ranks
        self._alone = str(plan.rank_classes[0].representative) if len(plan.rank_classes) == 1 else ""
        spans = [
            (first, last, str(each.representative))
            for each in plan.rank_classes
            for first, last in RankSet.parse(each.ranks).spans
        ]
        self._spans = sorted(spans)
        self._firsts = [first for first, _, _ in self._spans]

    def gpus(self, job: BoundJob) -> tuple[JobGpu, ...]:
        """Every GPU once, and every host of which no GPU is known; the rank classes by turns.

        What a rank told of itself is believed before the order of lists.
        """
        ranks = [*self._reported_gpus(job), *self._listed_gpus(job)]
        found: dict[str, JobGpu] = {}
        for rank, host, uuid in ranks:
            if uuid:
                found.setdefault(uuid, self._gpu(job, rank, host, uuid))
        for uuid in job.gpu_uuids:
            found.setdefault(uuid, self._gpu(job, None, "", uuid))
        with_gpu = {each.host for each in found.values()}
        bare = {self._gpu(job, rank, host, ""): None for rank, host, uuid in ranks if not uuid and host not in with_gpu}
        known = with_gpu | {each.host for each in bare}
        bare |= {self._gpu(job, None, host, ""): None for host in job.hosts if host not in known}
        by_class: dict[str, list[JobGpu]] = {}
        for each in chain(found.values(), bare):
            by_class.setdefault(each.rank_class, []).append(each)
        return tuple(_interleave(list(by_class.values())))

    def find_highest(self, job: BoundJob) -> tuple[MeasuredClass, ...]:
        """The highest of each rank class."""
        highest: dict[str, int] = {}
        for each in job.measured:
            if each.device_bytes is not None:
                rank_class = self._class_of(each.rank)
                highest[rank_class] = max(each.device_bytes, highest.get(rank_class, 0))
        return tuple(
            MeasuredClass(
                plan_id=job.plan_id, rank_class=rank_class, system=job.system, job_id=job.job_id, device_bytes=device
            )
            for rank_class, device in highest.items()
        )

    def _reported_gpus(self, job: BoundJob) -> Iterator[tuple[int, str, str]]:
        return ((each.rank, each.host, each.gpu_uuid) for each in job.measured if each.host or each.gpu_uuid)

    def _listed_gpus(self, job: BoundJob) -> Iterator[tuple[int, str, str]]:
        """Lists say which rank has which GPU only if they name all of them: else they are what some ranks told."""
        if len(job.gpu_uuids) != self._ranks:
            return
        a_host = self._ranks // len(job.hosts) if job.hosts and self._ranks % len(job.hosts) == 0 else 0
        told = {each.gpu_uuid for each in job.measured}
        for rank, uuid in enumerate(job.gpu_uuids):
            if uuid not in told:
                yield rank, job.hosts[rank // a_host] if a_host else "", uuid

    def _gpu(self, job: BoundJob, rank: int | None, host: str, uuid: str) -> JobGpu:
        rank_class = self._alone if rank is None else self._class_of(rank)
        return JobGpu(
            plan_id=job.plan_id, rank_class=rank_class, system=job.system, job_id=job.job_id, host=host, gpu_uuid=uuid
        )

    def _class_of(self, rank: int) -> str:
        place = bisect_right(self._firsts, rank) - 1
        return self._spans[place][2] if place >= 0 and rank <= self._spans[place][1] else ""


def _fullest(classes: Iterable[RankClassSummary]) -> list[RankClassSummary]:
    return sorted(classes, key=lambda each: (each.capacity_bytes - each.device_bytes, each.representative))


def _place(entry: tuple[str, RankClassSummary]) -> tuple[str, int]:
    return entry[0], entry[1].representative


def _interleave(groups: Iterable[Sequence[_Member]]) -> Iterator[_Member]:
    """The first of each group, then the second of each, and so on."""
    nothing = object()
    for turn in zip_longest(*groups, fillvalue=nothing):
        yield from (each for each in turn if each is not nothing)  # type: ignore[misc]


def _limit_members(groups: Sequence[Sequence[_Member]], most: int) -> tuple[tuple[_Member, ...], int]:
    """At most so many, of every group its share; and how many were left out."""
    members = tuple(_interleave(groups))
    return members[:most], max(len(members) - most, 0)


def _fold_smallest(rows: Sequence[Capacity], most: int) -> tuple[tuple[Capacity, ...], int]:
    """The largest, and all others added up as one, so that sums stay what they are."""
    if len(rows) <= most:
        return tuple(rows), 0
    largest = sorted(rows, key=lambda row: (-max(row.requested_bytes, row.predicted_bytes), -row.jobs, -row.judged))
    kept, others = largest[: most - 1], largest[most - 1 :]
    counts = [each.name for each in fields(Capacity) if each.name not in ("team", "queue", "gpu")]
    sums = {name: sum(getattr(row, name) for row in others) for name in counts}
    return (*kept, replace(Capacity(team=OTHER, queue=OTHER, gpu=OTHER), **sums)), len(others)

"""Reads everything that metrics export, bounded: a scrape stays small however much is stored.

Where there is more than fits, every plan and every job keeps its share; how much was left out is told.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from planner.job.rank_sets import RankSet
from planner.report.statement import Verdict
from planner.service.history.capacity import Capacity, sum_capacity
from planner.service.history.counters import SharedFigures
from planner.service.history.job_table import ActivePlan, BoundJob
from planner.service.history.plan_table import HostSummary, PlanSummary, RankClassSummary
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
    jobs: int = 200
    gpus: int = 700
    groups: int = 100
    kinds: int = 50


class JobClass(NamedTuple):
    """A rank class, by its representative, of a job that has not ended; "" where the class is not known."""

    plan_id: str
    rank_class: str
    system: str
    job_id: str


class JobGpu(NamedTuple):
    """A GPU that a job has. What is not known is empty; `rank_class` is the class's representative."""

    plan_id: str
    rank_class: str
    system: str
    job_id: str
    host: str
    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What is known now. `rank_classes` and `categorized` go with the id of their plan; errors are in percent."""

    plan_counts: Mapping[Verdict, int]
    plans: tuple[PlanSummary, ...]
    hosts: Mapping[str, HostSummary]
    capacity_bytes: Mapping[str, int]
    rank_classes: tuple[tuple[str, RankClassSummary], ...]
    categorized: tuple[tuple[str, RankClassSummary], ...]
    jobs: tuple[BoundJob, ...]
    gpus: tuple[JobGpu, ...]
    measured: tuple[tuple[JobClass, int], ...]
    capacity: tuple[Capacity, ...]
    check_counts: Mapping[Verdict | None, int]
    validation_counts: Mapping[ValidationState, int]
    errors: Mapping[_Group, tuple[float, ...]]
    calibration: StoredCalibration | None
    figures: SharedFigures
    left_out: Mapping[str, int]
    seconds: float


def overview(history: History, bounds: Bounds | None = None) -> Overview:
    most, began = bounds or Bounds(), time.perf_counter()
    active = history.jobs.active_plans()
    classes = [[(plan.summary.plan_id, one) for one in _fullest_first(plan)] for plan in active.plans]
    rank_classes, classes_left = _limit_members(classes, most.rank_classes)
    categorized, categorized_left = _limit_members(classes, most.categorized)
    jobs, jobs_left = _limit_members([plan.jobs for plan in active.plans], most.jobs)
    places = [(job, _PlanGpus(plan)) for plan in active.plans for job in plan.jobs]
    gpus, gpus_left = _limit_members([plan_gpus.gpus(job) for job, plan_gpus in places], most.gpus)
    measured, measured_left = _limit_members([plan_gpus.find_highest(job) for job, plan_gpus in places], most.jobs)
    capacity, groups_left = _fold_smallest(history.capacity(), most.groups)
    errors = history.validations.errors()
    kept = dict(list(errors.items())[: most.kinds])
    return Overview(
        plan_counts=history.plans.counts(),
        plans=tuple(plan.summary for plan in active.plans),
        hosts={plan.summary.plan_id: plan.host for plan in active.plans if plan.host is not None},
        capacity_bytes={
            plan.summary.plan_id: min(one.capacity_bytes for one in plan.rank_classes)
            for plan in active.plans
            if plan.rank_classes
        },
        rank_classes=_in_order(rank_classes),
        categorized=_in_order(categorized),
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
    def __init__(self, plan: ActivePlan) -> None:
        self._ranks = plan.summary.ranks
        self._alone = str(plan.rank_classes[0].representative) if len(plan.rank_classes) == 1 else ""
        self._spans = sorted(
            (first, last, str(rank_class.representative))
            for rank_class in plan.rank_classes
            for first, last in RankSet.parse(rank_class.ranks).spans
        )

    def gpus(self, job: BoundJob) -> tuple[JobGpu, ...]:
        """Every GPU once, and every host of which no GPU is known; the rank classes by turns.

        What a rank reported of itself counts before the order of lists.
        """

        def gpu(rank: int | None, host: str, uuid: str) -> JobGpu:
            rank_class = self._alone if rank is None else self._class_of(rank)
            return JobGpu(job.plan_id, rank_class, job.system, job.job_id, host, uuid)

        ranks = [(peaks.rank, peaks.host, peaks.gpu_uuid) for peaks in job.measured if peaks.host or peaks.gpu_uuid]
        if len(job.gpu_uuids) == self._ranks:
            # Lists say which rank has which GPU only if they name all of them: else they are what some ranks told.
            per_host = self._ranks // len(job.hosts) if job.hosts and self._ranks % len(job.hosts) == 0 else 0
            known_uuids = {peaks.gpu_uuid for peaks in job.measured}
            ranks += [
                (rank, job.hosts[rank // per_host] if per_host else "", uuid)
                for rank, uuid in enumerate(job.gpu_uuids)
                if uuid not in known_uuids
            ]
        by_uuid: dict[str, JobGpu] = {}
        for rank, host, uuid in ranks:
            if uuid:
                by_uuid.setdefault(uuid, gpu(rank, host, uuid))
        for uuid in job.gpu_uuids:
            by_uuid.setdefault(uuid, gpu(None, "", uuid))
        with_gpu = {known.host for known in by_uuid.values()}
        bare = {gpu(rank, host, ""): None for rank, host, uuid in ranks if not uuid and host not in with_gpu}
        known_hosts = with_gpu | {known.host for known in bare}
        bare |= {gpu(None, host, ""): None for host in job.hosts if host not in known_hosts}
        by_class: dict[str, list[JobGpu]] = defaultdict(list)
        for known in chain(by_uuid.values(), bare):
            by_class[known.rank_class].append(known)
        return tuple(_interleave(list(by_class.values())))

    def find_highest(self, job: BoundJob) -> tuple[tuple[JobClass, int], ...]:
        highest: dict[JobClass, int] = {}
        for peaks in job.measured:
            if peaks.device_bytes is not None:
                rank_class = JobClass(job.plan_id, self._class_of(peaks.rank), job.system, job.job_id)
                highest[rank_class] = max(peaks.device_bytes, highest.get(rank_class, 0))
        return tuple(highest.items())

    def _class_of(self, rank: int) -> str:
        place = bisect_right(self._spans, rank, key=lambda span: span[0]) - 1
        return self._spans[place][2] if place >= 0 and rank <= self._spans[place][1] else ""


def _fullest_first(plan: ActivePlan) -> list[RankClassSummary]:
    return sorted(plan.rank_classes, key=lambda one: (one.capacity_bytes - one.device_bytes, one.representative))


def _in_order(classes: Iterable[tuple[str, RankClassSummary]]) -> tuple[tuple[str, RankClassSummary], ...]:
    return tuple(sorted(classes, key=lambda entry: (entry[0], entry[1].representative)))


def _interleave(groups: Iterable[Sequence[_Member]]) -> Iterator[_Member]:
    """The first of each group, then the second of each, and so on."""
    nothing = object()
    for turn in zip_longest(*groups, fillvalue=nothing):
        yield from (member for member in turn if member is not nothing)  # type: ignore[misc]


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
    return (*kept, Capacity(team=OTHER, queue=OTHER, gpu=OTHER, **sum_capacity(others))), len(others)

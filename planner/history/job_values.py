"""Values of a job: a reported change, a measured rank, and the stored job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from planner.out_of_memory.failure import Cause


class Outcome(StrEnum):
    """How a job ended, the worst last; OPEN until it is told."""

    OPEN = ""
    FINISHED = "finished"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """The peaks that one rank saw, in bytes; None is not measured."""

    rank: int
    host: str = ""
    gpu_uuid: str = ""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What is newly known of a job; None leaves what was known.

    Every rank may tell what it knows, in any order: hosts, GPUs and ranks are merged, the earliest start, the latest
    end and the worst outcome stand. A start after the end says that the job runs again.
    """

    plan_id: str | None = None
    team: str | None = None
    queue: str | None = None
    hosts: tuple[str, ...] | None = None
    """In the order of nodes."""
    gpu_uuids: tuple[str, ...] | None = None
    """In the order of ranks."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    """An outcome without an end ends the job now."""
    cause: Cause | None = None
    """Why it ran out of memory; the first one that is known stands."""
    failure: str = ""
    """The words from which the cause is known: torch's, Slurm's, Kubernetes', the kernel's."""
    lease_seconds: float | None = None
    """For so long from now the job counts as running, unless its end is told or the lease renewed; of an ended job it
    says that it runs again."""
    measured: tuple[MeasuredRank, ...] = ()
    reports: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What a rank tells beyond its peaks, as JSON, by rank; the last one stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundJob:
    """A job and the plan that was made for it."""

    system: str
    job_id: str
    plan_id: str
    team: str
    queue: str
    hosts: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime | None
    outcome: Outcome
    measured: tuple[MeasuredRank, ...]
    lapses_at: datetime | None = None
    """When it counts as ended though nobody told; None: it runs until somebody tells."""
    cause: Cause | None = None
    """Why it ran out of memory; None where it did not, or nobody told."""
    failure: str = ""

"""Says what a process that plans is given: a job or a program under a calibration, with the names that it will have.

Read there with the torch of the job, beside which neither Ray nor what speaks HTTP has to be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.calibration.interval import Calibration
from planner.job.schema import Gpu, Job
from planner.planning.program_ranks import choose_ranks
from planner.running.launch_line import LaunchLine
from planner.running.walled_program import WalledProgram
from planner.runtime.limits import Limits

START_SECONDS = 30.0
"""For each rank of a program: a process of its own has to start, and to be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What is to be run. Of `folder` (absolute, without links) and `tarball` one is there."""

    line: LaunchLine
    command: tuple[str, ...]
    gpu: Gpu
    ranks: str
    steps: int
    strict: bool
    host_memory_bytes: int = 0
    metadata: Mapping[str, str]
    folder: str = ""
    tarball: bytes = b""
    torch: str = ""
    """The release that it runs with; empty: the service's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to be planned under a calibration, with the names that its trace and its plan will have."""

    job: Job
    calibration: Calibration
    trace_id: str
    plan_id: str

    @property
    def runs_code(self) -> bool:
        """Whether the job brings code, which may be other code tomorrow under the same name."""
        return bool(self.job.model.factory)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A program to be run under a calibration, with the names that it will have."""

    request: RunRequest
    walled: WalledProgram
    limits: Limits
    """Of one rank."""
    calibration: Calibration
    trace_id: str
    plan_id: str
    runs_code: bool = True

    @property
    def seconds(self) -> float:
        """What its ranks may take together."""
        ranks = len(choose_ranks(self.request.ranks, self.request.line.world_size))
        return ranks * (self.limits.seconds + START_SECONDS)

"""What is planned and how: a program as it is started, or the one that a spec is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.hardware.gpu_records import GpuRecord
from planner.job.kinds import Kind, kind_of_spec
from planner.job.launching.line import LaunchLine
from planner.job.layout import axis_degrees, tokens_of_step
from planner.job.schema import Gpu, Job, Software
from planner.planning.identity import installed_torch
from planner.programs.launching import launch_line
from planner.runtime.limits import Limits
from planner.runtime.walled_program import WalledProgram
from planner.tracing.program.rank_process import USUAL_LIMITS
from planner.truth.calibration.interval import AppliedCorrection, Calibration
from planner.truth.calibration.learning import measured_calibration
from planner.upstream.torch_releases import SPECIAL_PARTS
from planner.versions import cuda_of

_PROGRAM = Kind(program=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInputs:
    """What is run and judged. `ranks`: `auto`, `all`, or ranks (`0,7`).

    The `command` is what a user has started; a spec's program has none."""

    line: LaunchLine
    command: tuple[str, ...]
    gpu: Gpu
    software: Software
    ranks: str = "auto"
    steps: int = 0
    steps_at: tuple[int, ...] = ()
    until_read: bool = False
    batches: int | None = None
    """That are drawn ahead of each data loader; None: none where steps are asked for, else what time allows."""
    patience_seconds: float | None = None
    strict: bool = False
    writes: bool = False
    packages: tuple[str, ...] = ()
    kernels: str = ""
    limits: Limits = USUAL_LIMITS
    host_memory_bytes: int = 0
    """What it may use of each node's main memory; 0: not said, and not judged."""
    tokens: float = 0.0
    """Of a step of all ranks, over the number of GPUs; 0: not known."""
    calibration: Calibration = field(default_factory=measured_calibration)
    walled: WalledProgram | None = None
    """Of somebody else: run behind walls."""
    job: Job | None = None
    """The spec whose program it is."""
    kind: Kind = _PROGRAM
    """But for how many ranks there are, and for what its traces say."""
    special_parts: frozenset[str] = SPECIAL_PARTS
    """What of it torch's versions treat differently: all of them where that is not known."""
    capacity_bytes: int = 0
    """What it may use of each GPU; 0: all of it."""
    micro_batches: int = 0
    """Of an iteration, where fewer of them are run."""

    @property
    def applied_calibration(self) -> AppliedCorrection:
        """What was learnt from measurements on its GPU and torch."""
        return self.calibration.applied_to(self.gpu.name, self.software.torch)


def inputs_of(
    line: LaunchLine, command: Sequence[str], gpu: Gpu | GpuRecord, torch: str = "", **others: Any
) -> ProgramInputs:
    """The program of a launch line on a GPU, with this torch (`2.6`; default: that of this process) and
    the CUDA that it comes with; `others` are fields."""
    torch = torch or installed_torch()
    return ProgramInputs(
        line=line,
        command=tuple(command),
        gpu=Gpu(name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch),
        software=Software(torch=torch, cuda=cuda_of(torch)),
        **others,
    )


def inputs_of_job(job: Job, calibration: Calibration) -> ProgramInputs:
    """The program of a spec."""
    return ProgramInputs(
        line=launch_line(job),
        command=(),
        gpu=job.cluster.gpu,
        software=job.software,
        host_memory_bytes=job.cluster.host_memory,
        tokens=tokens_of_step(job) / math.prod(axis_degrees(job.parallel).values()),
        calibration=calibration,
        job=job,
        kind=kind_of_spec(job),
        special_parts=_special_parts(job),
        capacity_bytes=job.cluster.capacity_bytes,
        micro_batches=job.train.gradient_accumulation_steps,
    )


def _special_parts(job: Job) -> frozenset[str]:
    """What of a job torch's versions treat differently."""
    degrees = axis_degrees(job.parallel)
    parts = {axis for axis in SPECIAL_PARTS if degrees.get(axis, 1) > 1}
    if job.train.compile is not None:
        parts.add("compiled")
    if job.model.adapter is not None:
        parts.add("lora")
    return frozenset(parts)

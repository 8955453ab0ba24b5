"""The program of a spec with `trainer`: how it is started, and what is run of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from planner.job.launching.line import parse
from planner.job.packages import refuse_missing_packages
from planner.job.schema import Job
from planner.job.trainer import accumulation_steps, evaluates_or_saves_within, micro_batch_size, ranks_with_samples
from planner.planning.inputs import ProgramInputs, inputs_of
from planner.programs.launching import trainer_command
from planner.runtime.walled_program import WalledProgram
from planner.tracing.isolated import USUAL_ISOLATION, Isolation
from planner.tracing.program import stopping
from planner.tracing.program.rank_process import program_limits
from planner.truth.calibration.interval import Calibration


@contextmanager
def started_trainer(
    job: Job, calibration: Calibration, isolation: Isolation = USUAL_ISOLATION
) -> Iterator[ProgramInputs]:
    """What is run of a job with `trainer`, while its files are there: behind the walls of the `isolation`, if it has
    some. Raises SpecError."""
    refuse_missing_packages(job)
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        work = replace(program_of(job, Path(folder)), calibration=calibration)
        if isolation.walls is not None:
            os.chmod(folder, 0o755)  # nobody reads there
            walled = WalledProgram(walls=replace(isolation.walls, readable=()), folder=folder)
            work = replace(work, walled=walled, limits=program_limits(isolation.limits))
        yield work


def program_of(job: Job, folder: Path) -> ProgramInputs:
    """What is run and judged of a job with `trainer`; files that it takes are written to `folder`. Raises SpecError."""
    words, cluster = trainer_command(job, folder), job.cluster
    tokens = micro_batch_size(job) * accumulation_steps(job) * (job.train.sequence_length or 0)
    shown = [word.removeprefix(f"{folder}/") for word in words]
    return inputs_of(
        parse(words, nodes=cluster.nodes, node_gpus=cluster.gpus_per_node),
        shown,
        replace(cluster.gpu, total_bytes=cluster.capacity_bytes),
        torch=job.software.torch,
        batches=0,  # all are of one size
        patience_seconds=None if evaluates_or_saves_within(job, stopping.MOST) else 0.0,
        host_memory_bytes=cluster.host_memory,
        job=job,
        tokens=tokens * ranks_with_samples(job) / cluster.ranks,
    )

"""Runs the program of a job on a real device as one rank, and says what that took: `planner measure JOB`."""

from __future__ import annotations

import json
import lzma
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from planner.errors import MeasureError
from planner.job.code_rules import ANY_CODE, CodeRules
from planner.job.launching.launched_ranks import rank_variables
from planner.job.launching.line import Launcher, LaunchLine, parse
from planner.job.loading import bundle
from planner.job.schema import Job
from planner.job.trainer import refuse_on_cpu, uses_deepspeed
from planner.programs.launching import launch_line, program_text, trainer_command
from planner.runtime.launcher_parsers import accelerate_variables
from planner.truth.measuring.measurement_lines import Measurement, Truth
from planner.truth.measuring.program import EndedProgram, World, measure_program

_MOST_RUNS = {"none": 3, "absent": 3, "present": 8}
"""On a CPU. A process group's threads give tensors back where the profiler does not look, or do not: it is a race."""
_AGREEING = 2
_A_MOMENT_BYTES = 1024
_MEASURED = {
    "max_steps": 3, "eval_strategy": "no", "eval_on_start": False, "save_strategy": "no",
    "load_best_model_at_end": False, "report_to": "none", "push_to_hub": False,
}  # fmt: skip
"""Of a Trainer its steps are measured, which neither report nor save: state is born in the first, and DDP makes its
buckets anew in the second."""
_DEVICE = re.compile(r"(cuda|cpu)(?::(\d+))?")
_QUIET = {"KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
ALLOCATOR_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch before 2.10 reads the second only, and later ones read both."""


class ProgramFailedError(MeasureError):
    """The program of a job has ended too early: by an exception, or without one by its exit code."""

    def __init__(self, problem: str, *, ended_by: str, exit_code: int) -> None:
        super().__init__(problem)
        self.ended_by, self.exit_code = ended_by, exit_code

    @property
    def is_of_a_peer(self) -> bool:
        """That another rank is gone NCCL says by a class, gloo by a place in its source."""
        return self.ended_by.startswith("Dist") or "gloo/transport" in self.ended_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a rank is measured as. `peers`: see `Measurement`; `is_alone`: nobody else uses the GPU, so that its used
    bytes are this process's where the driver does not count by process; `meeting`: where peers that are present meet,
    HOST:PORT."""

    device: str
    rank: int
    world_size: int
    peers: str
    by_deepspeed: bool
    is_alone: bool = True
    meeting: str = ""
    code: CodeRules = ANY_CODE


def make_setting(job: Job, device: str, rank: int = 0, *, meeting: str = "", **more: Any) -> Setting:
    """As one rank of the job on `device` (cuda, cuda:1, cpu), with peers if there is a `meeting`.

    Raises MeasureError for another device, and for a rank that the job does not have; SpecError for a job that does not
    train on a CPU as it does on GPUs.
    """
    if not _DEVICE.fullmatch(device):
        raise MeasureError(f"there is no device {device!r}", allowed="cuda, cuda:1, cpu", place="--device")
    if device == "cpu":
        refuse_on_cpu(job)
    size = job.cluster.ranks
    if not 0 <= rank < size:
        raise MeasureError(f"there is no rank {rank} in a world of {size}", allowed=f"0 to {size - 1}")
    return Setting(
        device=device,
        rank=rank,
        world_size=size,
        peers="none" if size == 1 else "present" if meeting else "absent",
        by_deepspeed=uses_deepspeed(job),
        meeting=meeting,
        **more,
    )


def measure(job: Job, setting: Setting, *, snapshot: Path | None = None) -> Measurement:
    """The rank, on a CPU in as many runs as it takes. Running out of memory is a result.

    `snapshot`: where the allocator's history goes (`.xz`: compressed), on a GPU. Raises MeasureError, for what the job
    names and is not there too.
    """
    return measure_until_runs_agree(lambda: {setting.rank: measure_once(job, setting, snapshot)})[setting.rank]


def measure_once(job: Job, setting: Setting, snapshot: Path | None = None) -> Measurement:
    """One run of the rank's program, the file that is planned, in a process of its own. Raises as :func:`measure`."""
    with tempfile.TemporaryDirectory(prefix="planner-measure-") as made:
        folder = Path(made)
        program = folder / "train.py"
        line, run_job = _start(job, folder)
        program.write_text(program_text(run_job), encoding="utf-8")
        ended = measure_program(
            [sys.executable, str(program)],
            World(size=setting.world_size, rank=setting.rank),
            folder,
            environment=_environment(job, line, setting),
            snapshots=folder if snapshot is not None else None,
        )
        (measured,) = ended.measurements
        if measured.error or (measured.ended_by and measured.out_of_memory is None):
            raise _failure(ended, measured)
        if snapshot is not None and measured.snapshot:
            recorded = (folder / measured.snapshot).read_bytes()
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            snapshot.write_bytes(lzma.compress(recorded) if snapshot.suffix == ".xz" else recorded)
            measured = replace(measured, snapshot=snapshot.name)
    return replace(
        measured, case=job.metadata.name, job=bundle(job), command=(), peers=setting.peers, ended_by="", exit_code=0
    )


def _start(job: Job, folder: Path) -> tuple[LaunchLine, Job]:
    """How the job's program is started, and the job that it is given."""
    if job.trainer is None:
        return launch_line(job), job
    cluster = job.cluster
    line = parse(trainer_command(job, folder), nodes=cluster.nodes, node_gpus=cluster.gpus_per_node)
    arguments = {**job.trainer.arguments, **_MEASURED, "output_dir": str(folder / "output")}
    trainer = replace(job.trainer, arguments=arguments)
    return line, replace(job, trainer=trainer)


def _environment(job: Job, line: LaunchLine, setting: Setting) -> dict[str, str]:
    """As the launcher starts the program of the rank, with one GPU to each."""
    kind, index = _DEVICE.fullmatch(setting.device).groups()  # type: ignore[union-attr]
    written = {name: value for name, value in asdict(setting).items() if name != "meeting"} | {"device": kind}
    variables = {**rank_variables(line, setting.rank), "PLANNER_MEASURE_JOB": json.dumps(written)}
    if "LOCAL_RANK" in variables:  # one process of accelerate's has none
        variables["LOCAL_RANK"] = index or "0"
    if line.launcher is Launcher.ACCELERATE:
        variables |= accelerate_variables(line.launched_words, is_alone=line.world_size == 1)
    if kind == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    # A rank that is alone meets itself, at any port that is free.
    variables["MASTER_ADDR"], _, variables["MASTER_PORT"] = (setting.meeting or "127.0.0.1:0").rpartition(":")
    if job.allocator.conf:
        variables |= dict.fromkeys(ALLOCATOR_CONFS, job.allocator.conf)
    return {**os.environ, **_QUIET, **variables}


def _failure(ended: EndedProgram, measured: Measurement) -> Exception:
    """Why the program has no figures, as the error that says it."""
    if problem := ended.problems.get(measured.rank):
        return MeasureError(**problem)
    kind, _, message = measured.ended_by.partition(": ")
    if kind == "MemoryError":
        return MemoryError(message)
    said = f"the measured step failed: {measured.ended_by[:300]}"
    if not kind:
        said = f"the measured program ended with exit code {ended.exit_code}: {measured.error}"
    return ProgramFailedError(said, ended_by=measured.ended_by, exit_code=ended.exit_code)


def measure_until_runs_agree(once: Callable[[], Mapping[int, Measurement]]) -> dict[int, Measurement]:
    """The ranks of a world, which `once` measures all together: on a GPU of one run, on a CPU of several, until two of
    every rank agree, since the profiler can miss a free on a thread that it does not follow."""
    runs = [once()]
    while not all(_is_enough([run[rank] for run in runs]) for rank in runs[0]):
        runs.append(once())
    return {rank: _lowest([run[rank] for run in runs]) for rank in runs[0]}


def _is_enough(runs: Sequence[Measurement]) -> bool:
    first = runs[0]
    if first.truth is None or first.out_of_memory is not None or len(runs) >= _MOST_RUNS[first.peers]:
        return True
    measured = _lowest(runs).truth
    return measured is not None and measured.agreeing >= _AGREEING


def _lowest(runs: Sequence[Measurement]) -> Measurement:
    """A free that is missed leaves bytes standing: of several runs the lowest saw the most."""
    lowest = min(runs, key=lambda run: sum(phase.peak.requested_bytes for phase in run.phases))
    if lowest.truth is None:
        return lowest
    truth: Truth = replace(lowest.truth, runs=len(runs), agreeing=sum(_are_alike(lowest, run) for run in runs))
    return replace(lowest, truth=truth, seconds=round(sum(run.seconds for run in runs), 3))


def _are_alike(one: Measurement, other: Measurement) -> bool:
    """The same but for what a thread of the process group gives back a moment sooner or later."""
    pairs = zip(one.phases, other.phases, strict=True)
    return all(
        abs(a.peak.requested_bytes - b.peak.requested_bytes) <= _A_MOMENT_BYTES
        and abs(a.end.requested_bytes - b.end.requested_bytes) <= _A_MOMENT_BYTES
        for a, b in pairs
    )

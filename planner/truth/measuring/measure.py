"""Runs a job's program on a real device as one rank, and appends what it took to a file: `planner measure`."""

from __future__ import annotations

import datetime
import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from planner.errors import MeasureError
from planner.events import Event
from planner.job.layout import Mesh
from planner.job.loading import bundle, load_bundle
from planner.job.schema import Job
from planner.runtime.messages import AnswerWriter
from planner.training import absent_peers
from planner.truth.measuring import measurement_lines, nvml, recorders
from planner.truth.measuring.measurement_lines import (
    MeasuredPhase,
    Measurement,
    OutOfMemory,
    Truth,
    most_by_category,
    phases_of,
)
from planner.truth.measuring.recorders import CudaWatch, HostRecorder, HostRecording
from planner.truth.measuring.software import allocator_conf, device_facts, software

_MOST_RUNS = {"none": 3, "absent": 3, "present": 8}
"""On a CPU. A process group's threads give tensors back where the profiler does not look, or do not: it is a race."""
_AGREEING = 2
_A_MOMENT_BYTES = 1024
_PROGRAM = "planner.programs.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measurement, and on a CPU the events that it was made of."""

    measurement: Measurement
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    rank: int
    size: int
    peers: str

    @contextmanager
    def joined(self, job: Job, device: torch.device) -> Iterator[None]:
        """Inside, this process is as a launcher starts the program of a rank, in a process group that is there, and
        every optimizer step is taken."""
        variables: dict[str, object] = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": device.index or 0}
        if job.parallel.deepspeed:
            variables |= {"DS_ACCELERATOR": device.type}
        arguments = [_PROGRAM, json.dumps(bundle(job)), "--device", device.type]
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, {name: str(value) for name, value in variables.items()}))
            stack.enter_context(mock.patch.object(sys, "argv", arguments))
            if self.peers == "absent" or (self.peers == "none" and job.parallel.deepspeed):
                stack.enter_context(absent_peers.join(self.rank, self.size))
            stack.enter_context(absent_peers.take_every_step())
            yield


def measure(
    job: Job,
    device: torch.device,
    *,
    rank: int = 0,
    case: str = "",
    peers: str = "absent",
    snapshot: Path | None = None,
    alone: bool = True,
) -> MeasuredStep:
    """One rank's program for real. Running out of memory is a result.

    `peers`: `absent` for a process group that hallucinates the other ranks, `present` if the caller has initialised
    torch.distributed. `snapshot`: where the allocator's history goes (xz), on a GPU. `alone`: no other process uses
    the GPU, so that its used bytes are this process's where the driver does not count by process. Raises MeasureError
    if there is no such device, SpecError for what the job names and is not there.
    """
    size = Mesh.of(job.parallel).world_size
    if size == 1:
        rank, peers = 0, "none"
    if not 0 <= rank < size:
        raise MeasureError(f"there is no rank {rank} in a world of {size}", allowed=f"0 to {size - 1}")
    world = _World(rank=rank, size=size, peers=peers)
    if device.type == "cuda":
        measured = MeasuredStep(measurement=_on_cuda(job, device, world, snapshot, alone))
    elif device.type == "cpu":
        measured = _on_cpu(job, device, world)
    else:
        raise MeasureError(f"cannot measure on {device.type!r}", allowed="cuda, cpu")
    named = replace(measured.measurement, case=case or job.metadata.name)
    return replace(measured, measurement=named)


def _on_cuda(job: Job, device: torch.device, world: _World, snapshot: Path | None, alone: bool) -> Measurement:
    if not torch.cuda.is_available():
        raise MeasureError("there is no CUDA device that this torch can use", remedy="measure with --device cpu")
    # Device bytes of a context without a tensor, and who counts them.
    torch.cuda.init()
    torch.cuda.synchronize(device)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    counted_by = "process" if nvml.process_bytes(uuid) else "device" if alone else ""

    def device_bytes() -> int:
        if counted_by == "process":
            return nvml.process_bytes(uuid)
        if not counted_by:
            return 0
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)

    context_bytes = device_bytes()
    watch = CudaWatch(device, device_bytes)
    seconds, ddp = 0.0, dict[str, Any]()
    out_of_memory: OutOfMemory | None = None
    with recorders.record_history(snapshot), world.joined(job, device):
        began = time.perf_counter()
        try:
            with recorders.recorded(watch, device, by_deepspeed=bool(job.parallel.deepspeed)):
                left = _run_program()
            torch.cuda.synchronize(device)
            ddp = _account_of(left["trained"].model)
            watch.end()
            seconds = time.perf_counter() - began
            del left
        except torch.OutOfMemoryError as error:
            watch.end()
            phase, iteration = watch.now
            out_of_memory = OutOfMemory(phase=phase, iteration=iteration, message=str(error).splitlines()[0])
    stats = torch.cuda.memory_stats(device)
    return replace(
        _about(job, device, world),
        phases=watch.phases(),
        seconds=round(seconds, 3),
        categories=watch.categories(),
        memory_stats={key: value for key, value in stats.items() if isinstance(value, int)},
        context_bytes=context_bytes,
        device_bytes_by=counted_by,
        ddp=ddp,
        marks=tuple(watch.marks),
        out_of_memory=out_of_memory,
        snapshot=snapshot.name if snapshot is not None else "",
    )


def _on_cpu(job: Job, device: torch.device, world: _World) -> MeasuredStep:
    """Several runs, until two agree: the profiler can miss a free on a thread that it does not follow."""
    runs: list[_Run] = []
    began = time.perf_counter()
    with world.joined(job, device):
        while len(runs) < _MOST_RUNS[world.peers] and not _all_ranks(world, _enough(runs)):
            recorder = HostRecorder()
            gc.collect()
            with recorder.profile():
                with recorders.recorded(recorder, device, by_deepspeed=bool(job.parallel.deepspeed)):
                    left = _run_program()
                gc.collect()
            ddp = _account_of(left["trained"].model)
            del left
            recorded = recorder.build_recording()
            runs.append(_Run(phases_of(recorded.events), recorded, ddp))
    seconds = time.perf_counter() - began
    best = _lowest(runs)
    measurement = replace(
        _about(job, device, world),
        phases=best.phases,
        seconds=round(seconds, 3),
        categories=most_by_category(best.recorded.events),
        ddp=best.ddp,
        truth=Truth(
            runs=len(runs),
            agreeing=sum(best.like(run) for run in runs),
            net_bytes=best.recorded.net_bytes,
            live_bytes=best.recorded.live_bytes,
        ),
    )
    return MeasuredStep(measurement=measurement, events=best.recorded.events)


def _run_program() -> dict[str, Any]:
    """Runs it to its end in this process, which is as its launcher would have started it: what its module has then."""
    return runpy.run_module(_PROGRAM, run_name="__main__")


@dataclass(frozen=True, slots=True)
class _Run:
    phases: tuple[MeasuredPhase, ...]
    recorded: HostRecording
    ddp: dict[str, Any]

    def like(self, other: _Run) -> bool:
        """The same but for what a thread of the process group gives back a moment sooner or later."""
        pairs = zip(self.phases, other.phases, strict=True)
        return all(
            abs(a.peak.requested_bytes - b.peak.requested_bytes) <= _A_MOMENT_BYTES
            and abs(a.end.requested_bytes - b.end.requested_bytes) <= _A_MOMENT_BYTES
            for a, b in pairs
        )


def _lowest(runs: Sequence[_Run]) -> _Run:
    """A free that is missed leaves bytes standing: of several runs the lowest saw the most."""
    return min(runs, key=lambda run: sum(phase.peak.requested_bytes for phase in run.phases))


def _enough(runs: Sequence[_Run]) -> bool:
    return len(runs) > 1 and sum(_lowest(runs).like(run) for run in runs) >= _AGREEING


def _all_ranks(world: _World, answer: bool) -> bool:
    """Whether every rank says so: ranks that are there have to run equally often."""
    if world.peers != "present":
        return answer
    answers = torch.tensor([int(answer)])
    torch.distributed.all_reduce(answers, op=torch.distributed.ReduceOp.MIN)
    return bool(answers.item())


def _about(job: Job, device: torch.device, world: _World) -> Measurement:
    return Measurement(
        case="",
        job=bundle(job),
        device=device_facts(device),
        software=software(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        rank=world.rank,
        world_size=world.size,
        peers=world.peers,
        allocator_conf=allocator_conf(),
    )


def _account_of(model: nn.Module) -> dict[str, Any]:
    """What DistributedDataParallel says of its buckets: their sizes, rebuilt or not, the hook's name."""
    if not isinstance(model, DistributedDataParallel):
        return {}
    logged = model._get_ddp_logging_data()
    return {key: value for key, value in logged.items() if isinstance(value, str | int | float | bool)}


MEASUREMENTS = Path("measurements.jsonl")


def run_measure(
    job: Job, *, device: str = "cuda", rank: int = 0, out: Path = MEASUREMENTS, snapshot: Path | None = None
) -> Measurement:
    """Measures a job and appends the line to `out`.

    A world larger than one is measured with absent peers, unless the caller has initialised torch.distributed.
    Raises MeasureError.
    """
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise MeasureError(f"there is no device {device!r}", allowed="cuda, cuda:1, cpu", place="--device") from None
    if chosen.type == "cuda":
        chosen = torch.device("cuda", chosen.index or 0)
    peers = "present" if torch.distributed.is_initialized() else "absent"
    measured = measure(job, chosen, rank=rank, peers=peers, snapshot=snapshot)
    measurement_lines.append(out, [measured.measurement])
    return measured.measurement


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: the job of the bundle `job` on `device`, one line more in the file `out`."""
    run_measure(load_bundle(asked["job"], asked["name"]), device=asked["device"], out=Path(asked["out"]))

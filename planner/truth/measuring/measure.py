"""Runs a job's step on a real device, and appends what it took to a file: `planner measure`."""

from __future__ import annotations

import datetime
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from planner.errors import MeasureError
from planner.events import Event
from planner.job.layout import Mesh
from planner.job.loading import bundle, load_bundle
from planner.job.schema import Job
from planner.runtime.messages import AnswerWriter
from planner.training import absent_peers, step
from planner.truth.measuring import measurement_lines, nvml, recorders
from planner.truth.measuring.measured_phases import most_by_category, phases_of
from planner.truth.measuring.measurement_lines import MeasuredPhase, Measurement, OutOfMemory, Truth
from planner.truth.measuring.recorders import CudaWatch, HostRecorder, HostRecording
from planner.truth.measuring.software import allocator_conf, device_facts, software

_MOST_RUNS = {"none": 3, "absent": 3, "present": 8}
"""On a CPU. A process group's threads give tensors back where the profiler does not look, or do not: it is a race."""
_AGREEING = 2
_A_MOMENT_BYTES = 1024


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

    def join_process_group(self) -> AbstractContextManager[None]:
        return absent_peers.join(self.rank, self.size) if self.peers == "absent" else nullcontext()


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
    """One rank's step for real. Running out of memory is a result.

    `peers`: `absent` for a process group that hallucinates the other ranks, `present` if the caller has initialised
    torch.distributed. `snapshot`: where the allocator's history goes (xz), on a GPU. `alone`: no other process uses
    the GPU, so that its used bytes are this process's where the driver does not count by process. Raises MeasureError
    if there is no such device, SpecError for what the job names and is not there.
    """
    world = _world(job, rank, peers)
    if device.type == "cuda":
        measured = MeasuredStep(measurement=_on_cuda(job, device, world, snapshot, alone))
    elif device.type == "cpu":
        measured = _on_cpu(job, device, world)
    else:
        raise MeasureError(f"cannot measure on {device.type!r}", allowed="cuda, cpu")
    named = replace(measured.measurement, case=case or job.metadata.name)
    return replace(measured, measurement=named)


def _world(job: Job, rank: int, peers: str) -> _World:
    size = Mesh.of(job.parallel).world_size
    if size == 1:
        return _World(rank=0, size=1, peers="none")
    if not 0 <= rank < size:
        raise MeasureError(f"there is no rank {rank} in a world of {size}", allowed=f"0 to {size - 1}")
    return _World(rank=rank, size=size, peers=peers)


def _on_cuda(job: Job, device: torch.device, world: _World, snapshot: Path | None, alone: bool) -> Measurement:
    if not torch.cuda.is_available():
        raise MeasureError("there is no CUDA device that this torch can use", remedy="measure with --device cpu")
    context_bytes, counted_by = _create_context(device, alone)
    watch = CudaWatch(device, lambda: _device_bytes(device, counted_by))
    with (
        _out_of_memory(watch) as trouble,
        recorders.record_history(snapshot),
        world.join_process_group(),
        _steps_taken(),
    ):
        began = time.perf_counter()
        outcome = step.run(job, device, watch, rank=world.rank)
        torch.cuda.synchronize(device)
        ddp = _plain(outcome.ddp)
        watch.end()
        trouble.seconds, trouble.ddp = time.perf_counter() - began, ddp
        del outcome
    return replace(
        _about(job, device, world),
        phases=watch.phases(),
        seconds=round(trouble.seconds, 3),
        categories=watch.categories(),
        memory_stats=_numbers(torch.cuda.memory_stats(device)),
        context_bytes=context_bytes,
        device_bytes_by=counted_by,
        ddp=trouble.ddp,
        marks=tuple(watch.marks),
        out_of_memory=trouble.out_of_memory,
        snapshot=snapshot.name if snapshot is not None else "",
    )


@dataclass(slots=True)
class _StepOutcome:
    seconds: float = 0.0
    ddp: Mapping[str, Any] = None  # type: ignore[assignment]
    out_of_memory: OutOfMemory | None = None


@contextmanager
def _out_of_memory(watch: CudaWatch) -> Iterator[_StepOutcome]:
    ending = _StepOutcome(ddp={})
    try:
        yield ending
    except torch.OutOfMemoryError as error:
        watch.end()
        phase, iteration = watch.now
        message = str(error).splitlines()[0]
        ending.out_of_memory = OutOfMemory(phase=phase, iteration=iteration, message=message)


def _create_context(device: torch.device, alone: bool) -> tuple[int, str]:
    """Device bytes of a context without a tensor, and who counts them."""
    torch.cuda.init()
    torch.cuda.synchronize(device)
    by_process = nvml.process_bytes(_uuid(device))
    if by_process:
        return by_process, "process"
    return (_device_bytes(device, "device"), "device") if alone else (0, "")


def _device_bytes(device: torch.device, counted_by: str) -> int:
    if counted_by == "process":
        return nvml.process_bytes(_uuid(device))
    if not counted_by:
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _on_cpu(job: Job, device: torch.device, world: _World) -> MeasuredStep:
    """Several runs, until two agree: the profiler can miss a free on a thread that it does not follow."""
    runs: list[_Run] = []
    began = time.perf_counter()
    with world.join_process_group(), _steps_taken():
        while len(runs) < _MOST_RUNS[world.peers] and not _all_ranks(world, _enough(runs)):
            runs.append(_profile_step(job, device, world.rank))
    seconds = time.perf_counter() - began
    best = _lowest(runs)
    recorded = best.recorded
    measurement = replace(
        _about(job, device, world),
        phases=best.phases,
        seconds=round(seconds, 3),
        categories=most_by_category(recorded.events),
        ddp=best.ddp,
        truth=Truth(
            runs=len(runs),
            agreeing=sum(best.like(run) for run in runs),
            net_bytes=recorded.net_bytes,
            live_bytes=recorded.live_bytes,
        ),
    )
    return MeasuredStep(measurement=measurement, events=recorded.events)


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
    return min(runs, key=lambda run: sum(each.peak.requested_bytes for each in run.phases))


def _enough(runs: Sequence[_Run]) -> bool:
    return len(runs) > 1 and sum(_lowest(runs).like(run) for run in runs) >= _AGREEING


def _all_ranks(world: _World, answer: bool) -> bool:
    """Whether every rank says so: ranks that are there have to run equally often."""
    if world.peers != "present":
        return answer
    said = torch.tensor([int(answer)])
    torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
    return bool(said.item())


def _profile_step(job: Job, device: torch.device, rank: int) -> _Run:
    recorder = HostRecorder()
    gc.collect()
    with recorder.profile():
        outcome = step.run(job, device, recorder, rank=rank)
        gc.collect()
    ddp = _plain(outcome.ddp)
    del outcome
    recorded = recorder.build_recording()
    return _Run(phases_of(recorded.events), recorded, ddp)


def _steps_taken() -> AbstractContextManager[None]:
    return absent_peers.every_step_is_taken()


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


def _plain(logged: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in logged.items() if isinstance(value, str | int | float | bool)}


def _numbers(stats: Mapping[str, Any]) -> dict[str, int]:
    return {key: value for key, value in stats.items() if isinstance(value, int)}


MEASUREMENTS = Path("measurements.jsonl")


def run_measure(
    job: Job, *, device: str = "cuda", rank: int = 0, out: Path = MEASUREMENTS, snapshot: Path | None = None
) -> Measurement:
    """Measures a job and appends the line to `out`.

    A world larger than one is measured with absent peers, unless the caller has initialised torch.distributed.
    Raises MeasureError.
    """
    chosen = _device(device)
    peers = "present" if torch.distributed.is_initialized() else "absent"
    measured = measure(job, chosen, rank=rank, peers=peers, snapshot=snapshot)
    measurement_lines.append(out, [measured.measurement])
    return measured.measurement


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: the job of the bundle `job` on `device`, one line more in the file `out`."""
    run_measure(load_bundle(asked["job"], asked["name"]), device=asked["device"], out=Path(asked["out"]))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise MeasureError(f"there is no device {name!r}", allowed="cuda, cuda:1, cpu", place="--device") from None
    if device.type == "cuda":
        return torch.device("cuda", device.index or 0)
    return device

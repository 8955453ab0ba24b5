"""Runs a job's step on a real device in this process and says what it took."""

from __future__ import annotations

import datetime
import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from planner.errors import MeasureError
from planner.events import Event
from planner.layout.mesh import Mesh
from planner.measuring import nvml, snapshots
from planner.measuring.cuda_watch import CudaWatch
from planner.measuring.event_phases import most_by_category, phases_of
from planner.measuring.host_recorder import HostRecorder, Recorded
from planner.measuring.measurement import Measurement, OutOfMemory, PhaseMeasured, Truth
from planner.measuring.software import allocator_conf, device_facts, software
from planner.spec.bundle import bundle
from planner.spec.job import Job
from planner.training import absent_peers, step

_RUNS_ON_CPU = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measurement, and on a CPU the events that it was made of."""

    measurement: Measurement
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    rank: int
    size: int
    peers: str

    def joined(self) -> AbstractContextManager[None]:
        return absent_peers.join(self.rank, self.size) if self.peers == "absent" else nullcontext()


def measure(
    job: Job,
    device: torch.device,
    *,
    rank: int = 0,
    case: str = "",
    peers: str = "absent",
    snapshot: Path | None = None,
) -> Measured:
    """One rank's step for real. Running out of memory is a result.

    `peers`: `absent` for a process group that hallucinates the other ranks, `present` if the caller has initialised
    torch.distributed. `snapshot`: where the allocator's history goes (xz), on a GPU. Raises MeasureError if there is
    no such device, SpecError for what the job names and is not there.
    """
    world = _world(job, rank, peers)
    if device.type == "cuda":
        measured = Measured(measurement=_on_cuda(job, device, world, snapshot))
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


def _on_cuda(job: Job, device: torch.device, world: _World, snapshot: Path | None) -> Measurement:
    if not torch.cuda.is_available():
        raise MeasureError("there is no CUDA device that this torch can use", remedy="measure with --device cpu")
    context_bytes, counted_by = _create_context(device)
    watch = CudaWatch(device, lambda: _device_bytes(device, counted_by))
    with _out_of_memory(watch) as trouble, snapshots.recorded(snapshot), world.joined(), _steps_taken():
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
class _Ending:
    seconds: float = 0.0
    ddp: Mapping[str, Any] = None  # type: ignore[assignment]
    out_of_memory: OutOfMemory | None = None


@contextmanager
def _out_of_memory(watch: CudaWatch) -> Iterator[_Ending]:
    ending = _Ending(ddp={})
    try:
        yield ending
    except torch.OutOfMemoryError as error:
        watch.end()
        phase, iteration = watch.now
        message = str(error).splitlines()[0]
        ending.out_of_memory = OutOfMemory(phase=phase, iteration=iteration, message=message)


def _create_context(device: torch.device) -> tuple[int, str]:
    """Device bytes of a context without a tensor, and who counts them."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    by_process = nvml.process_bytes(_uuid(device))
    if by_process:
        return by_process, "process"
    return _device_bytes(device, "device"), "device"


def _device_bytes(device: torch.device, counted_by: str) -> int:
    if counted_by == "process":
        return nvml.process_bytes(_uuid(device))
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _on_cpu(job: Job, device: torch.device, world: _World) -> Measured:
    """Up to three runs, until two agree: the profiler can miss an event on a thread that it does not follow."""
    runs: list[tuple[tuple[PhaseMeasured, ...], Recorded, dict[str, Any]]] = []
    began = time.perf_counter()
    with world.joined(), _steps_taken():
        while len(runs) < _RUNS_ON_CPU and _most_frequent(runs)[1] < 2:
            recorded, ddp = _profiled(job, device, world.rank)
            runs.append((phases_of(recorded.events), recorded, ddp))
    seconds = time.perf_counter() - began
    phases, agreeing = _most_frequent(runs)
    _, recorded, ddp = next(run for run in reversed(runs) if run[0] == phases)
    measurement = replace(
        _about(job, device, world),
        phases=phases,
        seconds=round(seconds, 3),
        categories=most_by_category(recorded.events),
        ddp=ddp,
        truth=Truth(runs=len(runs), agreeing=agreeing, net_bytes=recorded.net_bytes, live_bytes=recorded.live_bytes),
    )
    return Measured(measurement=measurement, events=recorded.events)


def _most_frequent(
    runs: list[tuple[tuple[PhaseMeasured, ...], Recorded, dict[str, Any]]],
) -> tuple[tuple[PhaseMeasured, ...], int]:
    if not runs:
        return (), 0
    return Counter(run[0] for run in runs).most_common(1)[0]


def _profiled(job: Job, device: torch.device, rank: int) -> tuple[Recorded, dict[str, Any]]:
    recorder = HostRecorder()
    gc.collect()
    with recorder.profiled():
        outcome = step.run(job, device, recorder, rank=rank)
        gc.collect()
    ddp = _plain(outcome.ddp)
    del outcome
    return recorder.recorded(), ddp


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

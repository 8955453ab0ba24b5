"""Runs one validation: traces the ranks on paper, measures them on a cluster or this machine, compares the two."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from planner.errors import MeasureError
from planner.events import Event
from planner.job.loading import bundle
from planner.job.overhead import OutsideEstimate, outside
from planner.job.schema import Gpu, Job, Software
from planner.planning.plan import plan_job
from planner.planning.trace_source import TraceSource
from planner.report.statement import Plan, Verdict
from planner.runtime.limits import Limits
from planner.service.local_ray import start_ray
from planner.service.validation import measuring_workers
from planner.service.validation.measuring_workers import Place, RefusedError
from planner.service.validation.requests import Device, Mode, Request
from planner.tracing.isolated import USUAL_ISOLATION, Isolation, trace_isolated
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.observation import observe
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measure import measure_until_runs_agree
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.truth.plan_comparison import Comparison, class_of, render, to_json, with_measurement
from planner.units import GIB, show_bytes

ALIKE = 0.03
"""By how much the memory of two GPUs of one kind differs, relative: 200 MiB between drivers (hardware/gpus.toml), and
ECC; 40 GB from 80 GB it tells in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """One rank, predicted without a calibration and measured. `outside` is the prediction's, of what really ran."""

    plan: Plan
    events: Sequence[Event]
    measurement: Measurement
    outside: OutsideEstimate
    gpu: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a validation found. `problem` says why it cannot be believed, if it cannot."""

    document: Mapping[str, Any]
    error_percent: float | None
    out_of_memory: bool
    torch: str
    problem: str = ""
    comparisons: tuple[Comparison, ...] = ()


def compare_ranks(ranks: Sequence[RankComparison], mode: str) -> Result:
    """The result of all ranks that were asked for, at least one: its error is that of the worst rank.

    Raises MeasureError if they were measured on a GPU that is not the job's.
    """
    for rank in ranks:
        _refuse_other_gpu(rank.gpu, rank.measurement.device)
    compared = tuple(with_measurement(rank.plan, rank.measurement, events=rank.events) for rank in ranks)
    doubted = [
        str(rank.measurement.rank)
        for rank in ranks
        if rank.measurement.truth is not None and not rank.measurement.truth.believed
    ]
    out_of_memory = any(rank.measurement.out_of_memory is not None for rank in ranks)
    first = ranks[0].measurement
    on_cpu = first.device.kind == "cpu"
    error_of = "kept" if on_cpu else "reserved"  # parameters, gradients, buckets and optimizer state
    errors = [
        figure.error_percent
        for comparison in compared
        for figure in (comparison.categories if on_cpu else comparison.peak)
        if (on_cpu or figure.name == error_of) and figure.error_percent is not None
    ]
    error = round(max(errors), 4) if errors and not doubted and not out_of_memory else None
    document = {
        "mode": mode,
        "device": dataclasses.asdict(first.device),
        "software": dict(first.software),
        "error_percent": error,
        "error_of": error_of,
        "out_of_memory": out_of_memory,
        "ranks": [_rank(rank, comparison) for rank, comparison in zip(ranks, compared, strict=True)],
    }
    doubt = (
        f"the measurement of rank {', '.join(doubted)} cannot be believed: its runs disagree, or the profiler missed "
        "something"
    )
    return Result(
        document=document,
        error_percent=error,
        out_of_memory=out_of_memory,
        torch=first.software.get("torch", ""),
        problem=doubt if doubted else "",
        comparisons=compared,
    )


def _refuse_other_gpu(gpu: Gpu, device: DeviceFacts) -> None:
    other_arch = gpu.arch.startswith("sm_") and device.arch != gpu.arch
    other_memory = abs(device.total_bytes - gpu.total_bytes) > ALIKE * gpu.total_bytes
    if device.kind != "cpu" and (other_arch or other_memory):
        there = f"it was {device.name} with {show_bytes(device.total_bytes)} ({device.arch})"
        raise MeasureError(
            f"the GPU that Ray gave is not the job's: {there}",
            allowed=f"{gpu.name or gpu.arch}, {show_bytes(gpu.total_bytes)}",
            remedy="give the nodes a label ray.io/accelerator-type that tells these GPUs apart, or name the GPU there",
        )


def _rank(rank: RankComparison, comparison: Comparison) -> dict[str, Any]:
    measured = rank.measurement
    on_cpu, out = measured.device.kind == "cpu", measured.out_of_memory
    statement = class_of(rank.plan, measured.rank)
    observation = None
    if not on_cpu and rank.gpu.name:  # else the comparison can teach nothing
        observation = observe(
            measured,
            gpu=rank.gpu.name,
            predicted_reserved_bytes=statement.peak.reserved_bytes,
            around=rank.outside,
            case=measured.case or rank.plan.plan_id,
            predicted_out_of_memory=statement.verdict is Verdict.EXCEEDS,
        )
    return {
        "rank": measured.rank,
        "peers": measured.peers,
        "seconds": measured.seconds,
        "comparison": to_json(comparison),
        "predicted_verdict": "" if on_cpu else statement.verdict.value,
        "out_of_memory": dataclasses.asdict(out) if out is not None else None,
        "device_bytes_by": measured.device_bytes_by,
        "observation": dataclasses.asdict(observation) if observation is not None else None,
    }


NOBODY = threading.Event()
"""Never set: for who waits to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which validations run here. `isolation` and `measuring` limit one process each."""

    measuring: Limits = field(default_factory=Limits)
    wait_seconds: float = 900.0
    isolation: Isolation = USUAL_ISOLATION
    """Of the process in which a job's own code is traced; its walls stand around the measured step too."""
    bare: bool = False
    """Measure a job's own code without walls: its operator has said so."""
    rehearsal: bool = False
    """Places are found as for a GPU, the step runs on the CPU: for clusters whose GPUs are pretended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    mode: Mode
    place: Place
    measured: tuple[int, ...]
    """The ranks that run; of a world of real peers all of them."""


def nodes() -> tuple[measuring_workers.Node, ...]:
    return measuring_workers.read_nodes(ray.nodes())  # type: ignore[no-untyped-call]


def choose_setting(request: Request, there: Sequence[measuring_workers.Node]) -> Setting:

    def place(processes: int) -> Place:
        if request.device is Device.CPU:
            return measuring_workers.place_on_cpus(there, processes)
        return measuring_workers.place_on_gpus(there, request.job.cluster.gpu, processes)

    world = request.job.cluster.ranks
    if request.mode is Mode.REAL_PEERS or (request.mode is Mode.AUTO and world > 1):
        try:
            return Setting(mode=Mode.REAL_PEERS, place=place(world), measured=tuple(range(world)))
        except RefusedError:
            if request.mode is not Mode.AUTO:
                raise
    return Setting(mode=Mode.ABSENT_PEERS, place=place(1), measured=request.ranks)


def validate(
    request: Request,
    conditions: Conditions,
    *,
    running: Callable[[], None] = lambda: None,
    stop: threading.Event = NOBODY,
) -> Result:
    """Predict, measure, compare. `running` is called when the place is there.

    Raises RefusedError if the cluster has no such place, MeasureError for whatever went wrong while measuring,
    SpecError and TraceError if the step cannot be traced, StoppedError if `stop` was set.
    """
    job, setting = request.job, choose_setting(request, nodes())
    source = _IsolatedSource(choose_isolation(job, conditions.isolation))
    predicted = plan_job(job, source=source)
    with measuring_workers.start_workers(setting.place, wait_seconds=conditions.wait_seconds, stop=stop) as workers:
        running()
        measurements = _measure_ranks(request, setting, workers, conditions, stop)
    compared = []
    for rank, measurement in measurements.items():
        # The figures outside the allocator hinge on the software that it ran with, where that is known.
        ran = {name: measurement.software.get(name) or getattr(job.software, name) for name in ("torch", "cuda")}
        compared.append(
            RankComparison(
                plan=predicted.plan,
                events=predicted.events_of(rank, on_cpu=_on_cpu(request, conditions)),
                measurement=measurement,
                outside=outside(job.cluster.gpu, Software(**ran), predicted.plan.communicators),
                gpu=job.cluster.gpu,
            )
        )
    return compare_ranks(compared, setting.mode.value)


class _IsolatedSource(TraceSource):
    """Makes each trace in a process of its own: none in that of a service, which other threads use too."""

    def trace_rank(self, job: Job, rank: int) -> Trace:
        return trace_isolated(job, rank, self.isolation)


def _on_cpu(request: Request, conditions: Conditions) -> bool:
    return conditions.rehearsal or request.device is Device.CPU


def choose_isolation(job: Job, isolation: Isolation) -> Isolation:
    """Walls stand around jobs that bring code or files of a Trainer, and around no others."""
    return isolation if job.model.factory or job.trainer else dataclasses.replace(isolation, walls=None)


def _measure_ranks(
    request: Request, setting: Setting, workers: Sequence[Any], conditions: Conditions, stop: threading.Event
) -> dict[int, Measurement]:
    meets = setting.mode is Mode.REAL_PEERS and request.job.cluster.ranks > 1
    asked: dict[str, Any] = {
        "job": bundle(request.job),
        "device": "cpu" if _on_cpu(request, conditions) else "cuda",
        "world_size": request.job.cluster.ranks,
        "code": dataclasses.asdict(conditions.isolation.code),
    }
    is_bare = conditions.bare and request.job.model.factory
    walls = None if is_bare else choose_isolation(request.job, conditions.isolation).walls

    def measure(places: Sequence[tuple[Any, int]]) -> dict[int, Measurement]:
        meeting = measuring_workers.find_meeting_place(workers)
        tasks = [(worker, {**asked, "rank": rank, "meeting": meeting if meets else ""}) for worker, rank in places]
        answers = measuring_workers.all_answers(tasks, conditions.measuring, stop, walls)
        return collect_measurements(answers, request.ranks)

    if meets:
        every_rank = list(zip(workers, setting.measured, strict=True))
        return measure_until_runs_agree(lambda: measure(every_rank))
    measurements: dict[int, Measurement] = {}
    for rank in setting.measured:
        measurements |= measure_until_runs_agree(partial(measure, [(workers[0], rank)]))
    return measurements


def collect_measurements(answers: Mapping[int, Mapping[str, Any]], wanted: Sequence[int]) -> dict[int, Measurement]:
    """The measurements of the wanted ranks, by rank. Raises MeasureError for the first problem, causes first.

    Where a rank ran out of memory, it is among them whether wanted or not, and its peers, which waited for it in vain,
    may be missing.
    """
    problems = {rank: answer for rank, answer in answers.items() if "problem" in answer}
    measurements = {
        rank: measurement_lines.from_json(answer["measurement"])
        for rank, answer in sorted(answers.items())
        if rank not in problems
    }
    ran_out = {rank for rank, measurement in measurements.items() if measurement.out_of_memory is not None}
    if problems and not ran_out:
        rank, answer = min(problems.items(), key=lambda item: (bool(item[1].get("of_a_peer")), item[0]))
        parts = {name: str(answer.get(name, "")) for name in ("allowed", "remedy")}
        whose = f"rank {rank}: " if len(answers) > 1 or len(wanted) > 1 else ""
        raise MeasureError(f"{whose}{answer['problem']}", **parts)
    return {rank: measurement for rank, measurement in measurements.items() if rank in ran_out or rank in wanted}


def hide_gpus() -> None:
    """From now on a process that this one starts sees no GPU: where steps are traced the paper GPU stands for it.

    Ray's workers are started by others.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


_OBJECT_STORE_BYTES = 200 * 10**6


def validate_here(request: Request, *, seconds: float, rehearsal: bool) -> Result:
    """Predicts and measures on this machine; a rehearsal pretends the GPUs and runs the step on the CPU.

    `seconds` is the longest that one step may take. Raises PlannerError for what cannot be measured here.
    """
    limits = Limits(seconds=seconds, memory_bytes=64 * GIB)
    conditions = Conditions(
        isolation=Isolation(limits=limits), measuring=limits, wait_seconds=seconds, rehearsal=rehearsal
    )
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if not os.environ.get("RAY_ADDRESS"):
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        processes = request.job.cluster.ranks if request.mode is not Mode.ABSENT_PEERS else 1
        if request.device is Device.CPU or rehearsal:
            options["num_cpus"] = max(os.cpu_count() or 1, min(processes, 64))
        if rehearsal:
            options["num_gpus"] = min(processes, 64)
        # Ray does not know every GPU by name. Whether it is the job's is seen when it has been measured.
        if kind := measuring_workers.find_kind(request.job.cluster.gpu):
            options["labels"] = {measuring_workers.LABEL: kind}
    start_ray(**options)
    try:
        hide_gpus()
        print(f"here: {measuring_workers.format_nodes(nodes())}; predicting, then measuring", file=sys.stderr)
        return validate(request, conditions, running=lambda: print("measuring", file=sys.stderr))
    finally:
        ray.shutdown()


def format_result(result: Result, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(result.document, indent=2) + "\n"
    ranks = result.document["ranks"]
    parts = [
        f"rank {rank['rank']}, peers {rank['peers']}\n{render(comparison)}"
        for rank, comparison in zip(ranks, result.comparisons, strict=True)
    ]
    error = "none can be told" if result.error_percent is None else f"{result.error_percent:.2f} %"
    return "\n".join(parts) + f"\nerror of {result.document['error_of']} bytes, the worst rank's: {error}\n"

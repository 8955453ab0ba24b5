"""One validation from beginning to end: predicted on paper, measured on the cluster, set side by side.

It blocks for as long as that takes; who waits for several runs each in a thread.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from planner import planning
from planner.errors import MeasureError
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import RankClass, rank_classes
from planner.measuring import measurement
from planner.measuring.measurement import Measurement
from planner.planning import RankTrace
from planner.spec.bundle import bundle
from planner.spec.job import Job, Software
from planner.tracing.isolated import USUAL_LIMITS, Limits, trace_isolated
from planner.validation import benches, cluster
from planner.validation.cluster import Place, RefusedError
from planner.validation.request import Device, Mode, Request
from planner.validation.side_by_side import Beside, Result, side_by_side

NOBODY = threading.Event()
"""Never set: for who waits to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which validations run here. `tracing` and `measuring` limit one process each."""

    tracing: Limits = USUAL_LIMITS
    measuring: Limits = USUAL_LIMITS
    wait_seconds: float = 900.0
    """How long a GPU that is there may be busy."""
    walls: Callable[[Limits, str], tuple[str, ...]] | None = None
    """What a foreign program (a factory, in its folder) is traced behind, as the front of its command line."""
    rehearsal: bool = False
    """Places are found as for a GPU, the step runs on the CPU: for clusters whose GPUs are pretended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and with whom the ranks run."""

    mode: Mode
    """ABSENT_PEERS or REAL_PEERS."""
    place: Place
    measured: tuple[int, ...]
    """The ranks that run; of a world of real peers all of them."""


def nodes() -> tuple[cluster.Node, ...]:
    """What the cluster that this process is connected to has."""
    return cluster.nodes_of(ray.nodes())  # type: ignore[no-untyped-call]


def setting_of(request: Request, there: Sequence[cluster.Node]) -> Setting:
    """Where the request would run. Raises RefusedError if this cluster cannot."""
    world = request.world_size
    if request.mode is Mode.REAL_PEERS or (request.mode is Mode.AUTO and world > 1):
        try:
            return Setting(mode=Mode.REAL_PEERS, place=_place(request, there, world), measured=tuple(range(world)))
        except RefusedError:
            if request.mode is not Mode.AUTO:
                raise
    return Setting(mode=Mode.ABSENT_PEERS, place=_place(request, there, 1), measured=request.ranks)


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
    setting = setting_of(request, nodes())
    predicted = _predicted(request, setting, conditions)
    with benches.benches(setting.place, wait_seconds=conditions.wait_seconds, stop=stop) as workers:
        running()
        measured = _measured(request, setting, workers, conditions, stop)
    ranks = [_beside(request.job, predicted, each) for each in measured.values()]
    return side_by_side(ranks, setting.mode.value)


def on_cpu(request: Request, conditions: Conditions) -> bool:
    """Whether the step runs on a CPU, whatever it was asked to be scheduled on."""
    return conditions.rehearsal or request.device is Device.CPU


def _place(request: Request, there: Sequence[cluster.Node], processes: int) -> Place:
    if request.device is Device.CPU:
        return cluster.place_on_cpus(there, processes)
    return cluster.place_on_gpus(there, request.job.cluster.gpu, processes)


def _predicted(request: Request, setting: Setting, conditions: Conditions) -> tuple[RankTrace, ...]:
    """What each class of the ranks that run does on paper: any of them may run out of memory."""
    target = "cpu" if on_cpu(request, conditions) else ""
    limits = tracing_limits(request.job, conditions)
    found = []
    for each in rank_classes(Mesh.of(request.job.parallel)):
        if not _has_any(each, setting.measured):
            continue
        first = trace_isolated(request.job, each.representative, target, limits)
        for part in planning.parts_of_class(request.job, each, first):
            if not _has_any(part, setting.measured):
                continue
            of_another_size = part.representative != each.representative
            trace = trace_isolated(request.job, part.representative, target, limits) if of_another_size else first
            found.append(RankTrace(part, trace))
    return tuple(found)


def tracing_limits(job: Job, conditions: Conditions) -> Limits:
    """Those of the conditions; behind walls if the job brings code."""
    if not job.model.factory or conditions.walls is None:
        return conditions.tracing
    walls = conditions.walls(conditions.tracing, job.model.factory_path)
    return dataclasses.replace(conditions.tracing, command=walls)


def _has_any(each: RankClass, ranks: Sequence[int]) -> bool:
    return any(rank in each.ranks for rank in ranks)


def _measured(
    request: Request, setting: Setting, workers: Sequence[Any], conditions: Conditions, stop: threading.Event
) -> dict[int, Measurement]:
    told: dict[str, Any] = {
        "job": bundle(request.job),
        "device": "cpu" if on_cpu(request, conditions) else "cuda",
        "world_size": request.world_size,
    }
    real = setting.mode is Mode.REAL_PEERS and request.world_size > 1
    meeting = benches.meeting_of(workers)
    if real:
        tasks = [
            (worker, {**told, "rank": rank, "meeting": meeting})
            for worker, rank in zip(workers, setting.measured, strict=True)
        ]
        return measurements_of(benches.all_answers(tasks, conditions.measuring, stop), request.ranks)
    answers: dict[int, dict[str, Any]] = {}
    for rank in setting.measured:
        answers |= benches.all_answers([(workers[0], {**told, "rank": rank})], conditions.measuring, stop)
        if "problem" in answers[rank]:
            break
    return measurements_of(answers, request.ranks)


def measurements_of(answers: Mapping[int, Mapping[str, Any]], wanted: Sequence[int]) -> dict[int, Measurement]:
    """The measurements of the wanted ranks, by rank. Raises MeasureError for the first problem, causes first.

    Where a rank ran out of memory, it is among them whether wanted or not, and its peers, which waited for it in vain,
    may be missing.
    """
    problems = {rank: answer for rank, answer in answers.items() if "problem" in answer}
    found = {
        rank: measurement.from_json(answer["measurement"])
        for rank, answer in sorted(answers.items())
        if rank not in problems
    }
    ran_out = {rank for rank, each in found.items() if each.out_of_memory is not None}
    if problems and not ran_out:
        rank, answer = min(problems.items(), key=lambda each: (bool(each[1].get("of_a_peer")), each[0]))
        said = {name: str(answer.get(name, "")) for name in ("allowed", "remedy")}
        whose = f"rank {rank}: " if len(answers) > 1 else ""
        raise MeasureError(f"{whose}{answer['problem']}", **said)
    return {rank: each for rank, each in found.items() if rank in ran_out or rank in wanted}


def _beside(job: Job, traces: Sequence[RankTrace], measured: Measurement) -> Beside:
    trace = next(each for each in traces if measured.rank in each.rank_class.ranks)
    return Beside(
        plan=planning.judged(job, [trace]).plan,
        events=trace.trace.events,
        measurement=measured,
        outside=planning.outside_of(dataclasses.replace(job, software=as_it_ran(job, measured.software))),
        gpu=job.cluster.gpu,
    )


def as_it_ran(job: Job, software: Mapping[str, str]) -> Software:
    """The software on which the figures outside the allocator hinge, as measured where that is known."""
    return Software(
        torch=software.get("torch", "") or job.software.torch, cuda=software.get("cuda", "") or job.software.cuda
    )


def hide_gpus() -> None:
    """From now on a process that this one starts sees no GPU: where steps are traced the paper GPU stands for it.

    Ray's workers are started by others.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

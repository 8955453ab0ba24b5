"""Judges a program: chooses which of its ranks are run, replays what they did, and states what every rank will hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.allocator.rules import Rules
from planner.allocator.settled import replay_until_settled
from planner.calibration.interval import Calibration, interval
from planner.hardware.records import GpuRecord
from planner.job.schema import Gpu, Software
from planner.overhead.estimate import OutsideEstimate, outside
from planner.planning import identity
from planner.planning.pipeline import Progress, describe_unknown_workspaces, unknown_workspaces_of
from planner.planning.program_ranks import RankShare, choose_ranks, share_ranks
from planner.report.program_statement import AssumptionStatement, ProgramStatement, say_unseen
from planner.report.rank_class import state_rank_class
from planner.report.statement import OutsideAllocator, RankClassStatement, Seconds
from planner.running import rank_process
from planner.running.launch_line import LaunchLine
from planner.running.order import Gpu as FoundGpu
from planner.running.order import ProgramOrder, RankRun
from planner.running.rank_process import USUAL_LIMITS
from planner.running.walled_program import WalledProgram
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limits
from planner.tracing import garbage_collection


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInputs:
    """What is run and judged. `ranks`: `auto`, `all`, or ranks (`0,7`)."""

    line: LaunchLine
    command: tuple[str, ...]
    gpu: Gpu
    product: str
    software: Software
    ranks: str = "auto"
    steps: int = 0
    patience_seconds: float | None = None
    strict: bool = False
    writes: bool = False
    limits: Limits = USUAL_LIMITS
    calibration: Calibration = field(default_factory=Calibration.none)
    walled: WalledProgram | None = None
    """Of somebody else: run behind walls."""


def inputs_of(line: LaunchLine, command: Sequence[str], gpu: GpuRecord, **others: Any) -> ProgramInputs:
    """The program of a launch line on a GPU of the catalog, with the software of this process; `others` are fields."""
    torch = ".".join(identity.software()["torch"].split("+")[0].split(".")[:2])
    return ProgramInputs(
        line=line,
        command=tuple(command),
        gpu=Gpu(name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch),
        product=gpu.product,
        software=Software(torch=torch),
        **others,
    )


def judge_program(work: ProgramInputs, progress: Progress = lambda _: None) -> ProgramStatement:
    """The statement on a program; as :func:`judge_runs`."""
    return judge_runs(work, progress)[0]


def judge_runs(work: ProgramInputs, progress: Progress = lambda _: None) -> tuple[ProgramStatement, Sequence[RankRun]]:
    """The statement on a program, and the runs of its ranks on which it stands.

    Raises SpecError for ranks that it does not have, ProgramError and TraceError for a rank that cannot be run.
    """
    began = time.perf_counter()
    runs = _run(work, choose_ranks(work.ranks, work.line.world_size), progress)
    progress("replaying")
    replayed = time.perf_counter()
    shares = share_ranks(runs, work.line.world_size)
    with garbage_collection.pause_collection():
        statements = tuple(_state(work, each) for each in shares)
    seconds = Seconds(
        trace=round(sum(each.trace.seconds for each in runs), 3),
        replay=round(time.perf_counter() - replayed, 3),
        total=round(time.perf_counter() - began, 3),
    )
    return _statement(work, runs, shares, statements, seconds), runs


def _run(work: ProgramInputs, ranks: Sequence[int], progress: Progress) -> list[RankRun]:
    """One after the other: each may take all the memory that a program is allowed."""
    # What torch reads while it is imported, a server has read for all of its children.
    alike = len(ranks) > 1 and not work.line.environment and work.walled is None
    server = ForkServer(rank_process.PRELOAD) if alike else None
    runs: list[RankRun] = []
    try:
        for rank in ranks:
            progress(f"running rank {rank} of {work.line.world_size}")
            runs.append(rank_process.run_rank(_order(work, rank, runs), work.limits, server, work.walled))
    finally:
        if server is not None:
            server.close()
    return runs


def _statement(
    work: ProgramInputs,
    runs: Sequence[RankRun],
    shares: Sequence[RankShare],
    statements: tuple[RankClassStatement, ...],
    seconds: Seconds,
) -> ProgramStatement:
    first = runs[0]
    seen = {kind: max(each.seen.get(kind, 0) for each in runs) for kind in first.seen}
    return ProgramStatement(
        command=work.command,
        gpu=work.gpu.name or work.gpu.arch,
        nodes=work.line.nodes,
        gpus_per_node=work.line.processes_per_node,
        ending=first.ending,
        iterations=first.iterations,
        seen=seen,
        repeated=sum(each.times * each.iterations for each in first.trace.repeats),
        unseen=say_unseen(seen, min(each.idle_optimizers for each in runs)),
        allocator_conf=first.allocator_conf,
        communicators=tuple(first.communicators),
        calibrated=work.calibration.applied_to(work.gpu.name, work.software.torch).calibrated,
        rank_classes=statements,
        assumptions=(*_assumptions(runs), *(_untried(each) for each in shares if each.untried)),
        provenance=identity.provenance_of(work.calibration),
        notes=_notes(work, runs),
        seconds=seconds,
    )


def _order(work: ProgramInputs, rank: int, before: Sequence[RankRun] = ()) -> ProgramOrder:
    """The first rank is ended when enough was seen of it, the others after as many iterations."""
    ended = [each.iterations for each in before if not each.is_whole]
    return ProgramOrder(
        line=work.line,
        rank=rank,
        gpu=FoundGpu(
            product=work.product,
            arch=work.gpu.arch,
            total_bytes=work.gpu.total_bytes,
            outside_bytes=outside(work.gpu, work.software, [work.line.world_size]).total_bytes,
        ),
        cuda=work.software.cuda,
        steps=ended[0] if ended else work.steps,
        patience_seconds=work.patience_seconds,
        seconds=work.limits.seconds,
        strict=work.strict,
        writes=work.writes,
    )


def _state(work: ProgramInputs, share: RankShare) -> RankClassStatement:
    run, capacity = share.run, work.gpu.total_bytes
    held = _outside(work, run)
    rules = Rules.from_conf(run.allocator_conf)
    if run.memory_fraction < 1.0:
        rules = replace(rules, per_process_memory_fraction=run.memory_fraction)
    events, repeats, room = run.trace.events, run.trace.repeats, max(capacity - held.total_bytes, 0)
    capped = replay_until_settled(events, repeats, rules, room, device_bytes=capacity)
    # What it would have taken is asked for only where it does not get it.
    runs_out = capped.timeline.out_of_memory is not None
    found = replay_until_settled(events, repeats, rules) if runs_out else capped
    return state_rank_class(
        representative=run.rank,
        ranks=share.ranks,
        coordinates={},
        events=found.events,
        unlimited=found.timeline,
        capped=capped.timeline,
        outside=OutsideAllocator(cuda_context_bytes=held.cuda_context_bytes, nccl_bytes=held.nccl_bytes),
        interval=lambda device_bytes: interval(
            device_bytes,
            held,
            work.calibration,
            unknown_workspaces=bool(run.trace.unknown_workspaces),
            gpu=work.gpu.name,
            torch=work.software.torch,
        ),
        capacity_bytes=capacity,
    )


def _outside(work: ProgramInputs, run: RankRun) -> OutsideEstimate:
    applied = work.calibration.applied_to(work.gpu.name, work.software.torch)
    return applied.correct_outside(outside(work.gpu, work.software, run.communicators))


def _assumptions(runs: Sequence[RankRun]) -> tuple[AssumptionStatement, ...]:
    """Those of all ranks that were run; what several of them assume is said once, as often as one does."""
    found: dict[tuple[str, str, str], int] = {}
    for run in runs:
        for each in run.assumptions:
            key = (each.about.value, each.text, each.place)
            found[key] = max(found.get(key, 0), each.count)
    return tuple(
        AssumptionStatement(about=about, text=text, place=place, count=count)
        for (about, text, place), count in found.items()
    )


def _untried(share: RankShare) -> AssumptionStatement:
    return AssumptionStatement(
        about="ranks", text=f"not every rank was run: {share.ranks} are taken to do as rank {share.run.rank} does"
    )


def _notes(work: ProgramInputs, runs: Sequence[RankRun]) -> tuple[str, ...]:
    notes = outside(work.gpu, work.software, runs[0].communicators).provenance
    return (*notes, *describe_unknown_workspaces(unknown_workspaces_of(each.trace for each in runs)))

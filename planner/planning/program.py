"""Judges a program: chooses which of its ranks are run, replays what they did, and states what every rank will hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.allocator.rules import Rules
from planner.allocator.settled import SettledReplay
from planner.calibration.approximations import approximations_of_kernels
from planner.calibration.interval import Calibration
from planner.errors import ProgramError
from planner.hardware import catalog
from planner.hardware.records import GpuRecord
from planner.job.schema import Gpu, Software
from planner.job.torch_releases import cuda_of
from planner.layout.rank_classes import RankClass
from planner.layout.rank_sets import RankSet
from planner.overhead.estimate import OutsideEstimate, outside
from planner.planning import identity
from planner.planning.judging import Judge
from planner.planning.kept_by_mistake import growth_moments
from planner.planning.measured_calibration import measured_calibration
from planner.planning.notes import (
    describe_another_torch,
    describe_approximations,
    describe_unknown_workspaces,
    unknown_workspaces_of,
)
from planner.planning.pipeline import Progress
from planner.planning.program_branches import try_branches
from planner.planning.program_grounds import assumed_by, say_later_steps, say_untried, say_why_ranks_differ
from planner.planning.program_hosts import state_hosts_of
from planner.planning.program_ranks import RankShare, choose_ranks, more_ranks, share_ranks
from planner.report.lives import phase_spans
from planner.report.program_statement import ProgramStatement, StepStatement, say_unseen
from planner.report.statement import RankClassStatement, Seconds, Verdict
from planner.running import rank_process
from planner.running.launch_line import LaunchLine
from planner.running.order import Gpu as FoundGpu
from planner.running.order import ProgramOrder, RankRun
from planner.running.rank_process import USUAL_LIMITS
from planner.running.walled_program import WalledProgram
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limits
from planner.tracing import garbage_collection
from planner.units import show_bytes


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
    steps_at: tuple[int, ...] = ()
    patience_seconds: float | None = None
    strict: bool = False
    writes: bool = False
    packages: tuple[str, ...] = ()
    kernels: str = ""
    limits: Limits = USUAL_LIMITS
    host_memory_bytes: int = 0
    """What it may use of each node's main memory; 0: not said, and not judged."""
    calibration: Calibration = field(default_factory=measured_calibration)
    walled: WalledProgram | None = None
    """Of somebody else: run behind walls."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """What ranks will hold, and where they would run out of memory (empty if they do not)."""

    share: RankShare
    statement: RankClassStatement
    fails: str


def inputs_of(
    line: LaunchLine, command: Sequence[str], gpu: Gpu | GpuRecord, torch: str = "", **others: Any
) -> ProgramInputs:
    """The program of a launch line on a GPU, with this torch (`2.6`; default: that of this process) and
    the CUDA that it comes with; `others` are fields."""
    torch = torch or identity.installed_torch()
    return ProgramInputs(
        line=line,
        command=tuple(command),
        gpu=Gpu(name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch),
        product=known.product if (known := catalog.by_name(gpu.name)) else "",
        software=Software(torch=torch, cuda=cuda_of(torch)),
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
    runs = _run(work, progress)
    progress("replaying")
    replayed = time.perf_counter()
    with garbage_collection.pause_collection():
        judged = [judge_run(work, each) for each in share_ranks(runs, work.line.world_size)]
    judged.sort(key=lambda each: -each.statement.peak.device_bytes)
    replayed_seconds = time.perf_counter() - replayed
    if runs[0].branches:
        progress("trying branches the other way")
    branches = try_branches(
        runs[0],
        _order(work, runs[0].rank),
        lambda order: rank_process.run_rank(order, replace(work.limits, seconds=order.seconds), walled=work.walled),
        lambda run: judge_run(work, RankShare(run, str(run.rank), untried=False)).statement,
    )
    seconds = Seconds(
        trace=round(sum(each.trace.seconds for each in runs), 3),
        replay=round(replayed_seconds, 3),
        total=round(time.perf_counter() - began, 3),
    )
    return replace(_statement(work, runs, judged, seconds), branches=branches), runs


def _run(work: ProgramInputs, progress: Progress) -> list[RankRun]:
    """One after the other: each may take all the memory that a program is allowed. What the first one does says which
    others are run."""
    # What torch reads while it is imported, a server has read for all of its children.
    world_size = work.line.world_size
    alike = world_size > 1 and not work.line.environment and work.walled is None
    server = ForkServer(rank_process.PRELOAD) if alike else None
    runs: list[RankRun] = []

    def run(rank: int) -> None:
        progress(f"running rank {rank} of {world_size}")
        order = _order(work, rank, runs)
        if runs:
            order = replace(order, heard=runs[-1].announced, numbers=runs[-1].numbers)
        runs.append(rank_process.run_rank(order, work.limits, server, work.walled))

    try:
        run(choose_ranks(work.ranks, world_size)[0])
        for rank in more_ranks(work.ranks, world_size, runs[0]):
            run(rank)
    finally:
        if server is not None:
            server.close()
    return runs


def _statement(
    work: ProgramInputs,
    runs: Sequence[RankRun],
    judged: Sequence[JudgedRun],
    seconds: Seconds,
) -> ProgramStatement:
    first = runs[0]
    seen = {kind: max(each.seen.get(kind, 0) for each in runs) for kind in first.seen}
    host = state_hosts_of(runs, work.line, work.host_memory_bytes)
    return ProgramStatement(
        command=work.command,
        gpu=work.gpu.name or work.gpu.arch,
        nodes=work.line.nodes,
        gpus_per_node=work.line.processes_per_node,
        ending=first.ending,
        iterations=first.iterations,
        counted=first.counted,
        seen=seen,
        repeated=sum(each.times * each.iterations for each in first.trace.repeats),
        unseen=(
            *say_unseen(seen, min(each.idle_optimizers for each in runs), infers=all(each.infers for each in runs)),
            *say_later_steps(first, work.steps_at),
        ),
        allocator_conf=first.allocator_conf,
        communicators=tuple(first.communicators),
        calibrated=work.calibration.applied_to(work.gpu.name, work.software.torch).calibrated,
        rank_classes=tuple(each.statement for each in judged),
        steps_at=tuple(
            StepStatement(each.step, each.allocated_bytes, each.reserved_bytes) for each in judged[0].share.run.steps_at
        ),
        host=host,
        assumptions=(
            *assumed_by(runs),
            *say_why_ranks_differ([(each.share, each.statement) for each in judged]),
            *(say_untried(each.share) for each in judged if each.share.untried),
        ),
        out_of_memory=tuple(each.fails for each in judged if each.fails),
        provenance=identity.provenance_of(work.calibration),
        notes=(*_notes(work, runs), *(host.assumptions if work.host_memory_bytes else ())),
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
            name=work.gpu.name,
            outside_bytes=outside(work.gpu, work.software, [work.line.world_size]).total_bytes,
        ),
        cuda=work.software.cuda,
        torch=work.software.torch,
        steps=ended[0] if ended else work.steps,
        steps_at=work.steps_at,
        patience_seconds=work.patience_seconds,
        seconds=work.limits.seconds,
        strict=work.strict,
        writes=work.writes,
        packages=work.packages,
        kernels=work.kernels,
    )


def judge_run(work: ProgramInputs, share: RankShare) -> JudgedRun:
    """What the ranks will hold, and where they would run out of memory."""
    run = share.run
    rules = Rules.from_conf(run.allocator_conf)
    if run.memory_fraction < 1.0:
        rules = replace(rules, per_process_memory_fraction=run.memory_fraction)
    judge = Judge(
        rules=rules,
        gpu=work.gpu,
        torch=work.software.torch,
        capacity_bytes=work.gpu.total_bytes,
        held=_outside(work, run),
        calibration=work.calibration,
    )
    found, capped = judge.replay(run.trace)
    ranks = RankClass(run.rank, RankSet.parse(share.ranks), {})
    statement = judge.state(ranks, found.events, (found.timeline, capped.timeline), run.trace)
    if run.highest_bytes > judge.room_bytes and statement.verdict is not Verdict.EXCEEDS:
        raise ProgramError(
            f"rank {run.rank} held {show_bytes(run.highest_bytes)} at one time, outside of the {run.iterations}"
            f" iterations that are judged, and there are {show_bytes(judge.room_bytes)}",
            allowed="a program that fits whenever it was watched",
            remedy="judge more of it: steps, or a program without planner's own modules in its hands",
            place=work.line.program,
        )
    statement = replace(statement, moments=growth_moments(found.events, found.repeats, statement, rules))
    return JudgedRun(share, statement, _out_of_memory(share, capped))


def _out_of_memory(share: RankShare, capped: SettledReplay) -> str:
    failed = capped.timeline.out_of_memory
    if failed is None:
        return ""
    where = next(each for each in phase_spans(capped.events) if failed.event_index < each.last)
    phase = where.phase.value.replace("_", " ")
    return (
        f"The first allocation that fails on {share.named} is in iteration {where.iteration}, {phase} "
        f"(the program is not told, and goes on): {failed.message()}"
    )


def _outside(work: ProgramInputs, run: RankRun) -> OutsideEstimate:
    applied = work.calibration.applied_to(work.gpu.name, work.software.torch)
    return applied.correct_outside(outside(work.gpu, work.software, run.communicators))


def _notes(work: ProgramInputs, runs: Sequence[RankRun]) -> tuple[str, ...]:
    notes = outside(work.gpu, work.software, runs[0].communicators).provenance
    unknown = unknown_workspaces_of(each.trace for each in runs)
    counted = sorted({sentence for each in runs for sentence in each.trace.counted_workspaces})
    approximated = describe_approximations(approximations_of_kernels(unknown))
    another = describe_another_torch(work.software.torch)
    return (*notes, *describe_unknown_workspaces(unknown), *counted, *approximated, *another)

"""Judges a program: chooses which ranks run, replays what they did, and states what every rank and host holds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.allocator.host.nodes import ProgramHost, state_program_hosts
from planner.allocator.host.statement import HostStatement
from planner.allocator.replay import SettledReplay
from planner.allocator.rules import Rules
from planner.errors import PlannerError, ProgramError
from planner.events import Alloc
from planner.hardware import catalog
from planner.hardware.gpus import GpuRecord
from planner.job.layout import RankClass
from planner.job.overhead import OutsideEstimate, outside
from planner.job.rank_sets import RankSet
from planner.job.schema import Gpu, Software, cuda_of
from planner.planning import identity
from planner.planning.judging import Judge, growth_moments
from planner.planning.notes import (
    describe_another_torch,
    describe_approximations,
    describe_unknown_workspaces,
    unknown_workspaces_of,
)
from planner.planning.pipeline import Progress
from planner.planning.program_ranks import (
    RankShare,
    are_alike,
    choose_ranks,
    more_ranks,
    rank_set,
    share_ranks,
    speakers,
)
from planner.report.attribution import phase_spans
from planner.report.program_statement import (
    AssumptionStatement,
    BranchStatement,
    ProgramStatement,
    StepStatement,
    say_unseen,
)
from planner.report.statement import RankClassStatement, Seconds, Verdict
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limits
from planner.tracing import garbage_collection
from planner.tracing.program import rank_process
from planner.tracing.program.assumptions import About, Branch
from planner.tracing.program.launch_line import LaunchLine
from planner.tracing.program.rank_orders import Gpu as FoundGpu
from planner.tracing.program.rank_orders import ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS, WalledProgram
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.correction import approximations_of_kernels
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration
from planner.units import show_bytes

MOST_BRANCHES = 3
"""Lines that are tried."""
MOST_SECONDS = 60.0
"""Of the run so far: what takes longer is not run again unasked."""
_LONGER = 3.0

JudgeRun = Callable[[RankRun], RankClassStatement]


def try_branches(
    taken: RankRun, order: ProgramOrder, run: Callable[[ProgramOrder], RankRun], judge: JudgeRun
) -> tuple[BranchStatement, ...]:
    """What would have come of the other answers, of the first lines that there are. `order` is the one of the run that
    was `taken`."""
    found = []
    for number, each in enumerate(taken.branches):
        if number >= MOST_BRANCHES or taken.trace.seconds > MOST_SECONDS:
            found.append(_state(each, "not tried: " + ("others were" if number >= MOST_BRANCHES else "it takes long")))
            continue
        again = replace(
            order,
            otherwise=each.place,
            steps=order.steps if taken.is_whole else taken.iterations,
            seconds=_LONGER * taken.trace.seconds + MOST_SECONDS,
        )
        found.append(_try(each, taken, again, run, judge))
    return tuple(found)


def _try(
    branch: Branch, taken: RankRun, order: ProgramOrder, run: Callable[[ProgramOrder], RankRun], judge: JudgeRun
) -> BranchStatement:
    try:
        other = run(order)
    except PlannerError as error:
        return _state(branch, f"the program ends: {error.problem}")
    if are_alike(other.trace, taken.trace):
        return _state(branch, "the same memory")
    before, after = judge(taken).peak, judge(other).peak
    ending = f"; it {other.ending.removeprefix('the program ')}" if other.is_whole and not taken.is_whole else ""
    return replace(
        _state(branch, f"other memory{ending}"),
        allocated_bytes=before.allocated_bytes,
        reserved_bytes=before.reserved_bytes,
        other_allocated_bytes=after.allocated_bytes,
        other_reserved_bytes=after.reserved_bytes,
    )


def _state(branch: Branch, outcome: str) -> BranchStatement:
    return BranchStatement(place=branch.place, taken=branch.answer, outcome=outcome)


_MOST_PLACES = 3
"""Lines that are named where a host reads."""


def assumed_by(runs: Iterable[RankRun]) -> tuple[AssumptionStatement, ...]:
    """By all ranks that were run; what several of them assume is said once, as often as one does."""
    found: dict[tuple[str, str, str], int] = {}
    for run in runs:
        for each in run.assumptions:
            key = (each.about.value, each.text, each.place)
            found[key] = max(found.get(key, 0), each.count)
    return tuple(
        AssumptionStatement(about=about, text=text, place=place, count=count)
        for (about, text, place), count in found.items()
    )


def say_untried(share: RankShare) -> AssumptionStatement:
    """For which ranks a class speaks though they were not run."""
    staged = "each as one of its pipeline's stage that was run"
    why = staged if share.run.talkers else "only collectives travel between them"
    return AssumptionStatement(
        about="ranks",
        text=f"not every rank was run: {share.ranks} are taken to do as rank {share.run.rank} does ({why})",
    )


def say_later_steps(run: RankRun, asked: Sequence[int]) -> Iterator[str]:
    """Which steps of a schedule were not run, as far as that is known."""
    yield from run.schedules
    if run.schedules:
        yield "what later steps take is in no figure (--steps-at 0,900 runs steps that are named)"
    missed = set(asked) - {each.step for each in run.steps_at}
    if missed:
        yield f"the program did not come to step {', '.join(map(str, sorted(missed)))}"


def say_why_ranks_differ(
    judged: Sequence[tuple[RankShare, RankClassStatement]],
) -> Iterator[AssumptionStatement]:
    """Of classes that ask for the same bytes in the same order, and hold them longer because their host never waits;
    the fullest comes first."""
    if not judged:
        return
    fullest, statement = judged[0]
    for share, other in judged[1:]:
        more = statement.peak.allocated_bytes - other.peak.allocated_bytes
        read = _reads(share.run) - _reads(fullest.run)
        if more > 0 and read and _requests(share.run.trace) == _requests(fullest.run.trace):
            where = ", ".join(sorted(read)[:_MOST_PLACES])
            yield AssumptionStatement(
                about="ranks",
                text=f"with the same allocations {fullest.named} hold {show_bytes(more)} more at the peak than"
                f" {share.named}: there the host reads values of the GPU ({where}), waits for it by that, and what"
                " earlier work has used is free then. A host that reads nothing runs ahead of the GPU: NCCL's groups"
                " (until their watchdog has looked) and other streams (record_stream) keep it longer",
            )


def _reads(run: RankRun) -> Counter[str]:
    """How often the host has waited for a value, by the lines that read it."""
    found: Counter[str] = Counter()
    for each in run.assumptions:
        if each.about is About.VALUE:
            found[each.place] += each.count
    return found


def _requests(trace: Trace) -> list[int]:
    """The bytes of all allocations in their order."""
    return [each.requested_bytes for each in trace.written_out() if isinstance(each, Alloc)]


def state_hosts_of(runs: Sequence[RankRun], line: LaunchLine, capacity_bytes: int) -> HostStatement:
    """The statement about the nodes; `capacity_bytes` is what the program may use of each, 0 where nobody has said."""
    spoken = [(run, rank_set(ranks)) for run, ranks in speakers(runs, line.world_size)]
    found = state_program_hosts(
        [
            ProgramHost(
                representative=run.rank,
                ranks=ranks,
                events=run.trace.host,
                transformers="transformers" in run.libraries,
                assumed=run.trace.host_assumed,
            )
            for run, ranks in spoken
        ],
        ranks_per_node=line.processes_per_node,
        capacity_bytes=capacity_bytes,
        conf=runs[0].allocator_conf,
    )
    untried = [
        f"Of ranks {ranks} rank {run.rank} was run, and the others are taken to hold on the host what it does: what"
        " only some rank does there (the first of a node, say) is not seen."
        for run, ranks in spoken
        if len(ranks) > 1
    ]
    return replace(found, assumptions=(*found.assumptions, *untried))


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

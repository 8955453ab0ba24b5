"""Plans a program: chooses which ranks run, judges what they did, and states what every rank and host will hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from planner.allocator.host.nodes import TracedHost, state_hosts
from planner.allocator.host.statement import HostStatement
from planner.allocator.rules import Rules
from planner.errors import PlannerError
from planner.events import Alloc, Phase
from planner.hardware import catalog
from planner.hardware.gpu_records import GpuRecord
from planner.job.kinds import Kind
from planner.job.launching.line import LaunchLine
from planner.job.layout import RankClass
from planner.job.masking import CommandMask
from planner.job.named_gpus import refuse_ranks_on_slice
from planner.job.overhead import outside
from planner.job.rank_sets import RankSet
from planner.job.schema import DataLoader, Gpu, Software
from planner.planning import identity, notes
from planner.planning.judging import Judge, JudgedTrace, RankTrace, RunFacts, told_on, torch_difference
from planner.planning.long_runs import batch_moments, describe_sizes, moment_of_phases
from planner.planning.memory_pool import state_pool
from planner.planning.planned_classes import Progress
from planner.planning.program_ranks import (
    RankShare,
    are_alike,
    choose_ranks,
    more_ranks,
    rank_set,
    share_ranks,
    show_named_gpus,
    speakers,
    tell_asked_gpus,
)
from planner.report.statement import (
    AssumptionStatement,
    BranchStatement,
    NamedMoment,
    Plan,
    RankClassStatement,
    Seconds,
    StepStatement,
    ranks_text,
)
from planner.runtime.garbage_collection import pause_collection
from planner.runtime.limits import Limits
from planner.runtime.walled_program import WalledProgram
from planner.tracing.program import rank_process
from planner.tracing.program.assumptions import About, Branch
from planner.tracing.program.rank_orders import Gpu as FoundGpu
from planner.tracing.program.rank_orders import MoreGpusError, ProgramOrder, RankRun, divide_by_device, malformed_error
from planner.tracing.program.rank_process import USUAL_LIMITS
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration
from planner.units import show_bytes
from planner.versions import cuda_of

HeardOfRank = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInputs:
    """What is run and judged. `ranks`: `auto`, `all`, or ranks (`0,7`)."""

    line: LaunchLine
    command: tuple[str, ...]
    gpu: Gpu
    software: Software
    ranks: str = "auto"
    steps: int = 0
    steps_at: tuple[int, ...] = ()
    until_read: bool = False
    batches: int | None = None
    """That are drawn ahead of each data loader; None: none where steps are asked for, else what time allows."""
    patience_seconds: float | None = None
    strict: bool = False
    writes: bool = False
    packages: tuple[str, ...] = ()
    kernels: str = ""
    limits: Limits = USUAL_LIMITS
    host_memory_bytes: int = 0
    """What it may use of each node's main memory; 0: not said, and not judged."""
    tokens: float = 0.0
    """Of a step of all ranks, over the number of GPUs; 0: not known."""
    calibration: Calibration = field(default_factory=measured_calibration)
    walled: WalledProgram | None = None
    """Of somebody else: run behind walls."""


@dataclass(frozen=True, slots=True)
class JudgedShare:
    """What ranks will hold on one GPU of their process, and where they would run out of memory (empty if they do
    not)."""

    share: RankShare
    judged: JudgedTrace
    fails: str

    @property
    def statement(self) -> RankClassStatement:
        return self.judged.statement


@dataclass(frozen=True, slots=True)
class JudgedProgram:
    """The plan of a program, the runs of its ranks on which it stands, and what was judged of them, in the order of the
    plan's rank classes."""

    plan: Plan
    runs: Sequence[RankRun]
    shares: Sequence[JudgedShare]


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
        software=Software(torch=torch, cuda=cuda_of(torch)),
        **others,
    )


def judge_runs(
    work: ProgramInputs, progress: Progress = lambda _: None, heard: HeardOfRank = lambda *_: None
) -> JudgedProgram:
    """The plan of a program, by running some of its ranks. `heard` gets what they print.

    Raises SpecError for ranks that it does not have, ProgramError and TraceError for a rank that cannot be run.
    """
    began = time.perf_counter()
    refuse_ranks_on_slice(work.gpu.name, work.line.world_size, "--gpu")
    work, runs = _run_ranks(work, progress, heard)
    progress("replaying")
    replayed = time.perf_counter()
    with pause_collection():
        told = partial(told_on, work.gpu, work.line.processes_per_node)
        shares = share_ranks(runs, work.line.world_size, lambda trace: trace.as_told(told(trace)))
        judged = [judgement for share in shares for judgement in judge_devices(work, share)]
    judged.sort(key=lambda judgement: -judgement.statement.peak.device_bytes)
    replay_seconds = time.perf_counter() - replayed
    if runs[0].branches:
        progress("trying branches the other way")
    branches = try_branches(
        runs[0],
        _order(work, runs[0].rank),
        lambda order: rank_process.run_rank(order, replace(work.limits, seconds=order.seconds), walled=work.walled),
        lambda run: max(
            (each.statement for each in judge_devices(work, RankShare(run, str(run.rank), untried=False))),
            key=lambda statement: statement.peak.device_bytes,
        ),
    )
    seconds = Seconds(
        trace=round(sum(run.trace.seconds for run in runs), 3),
        replay=round(replay_seconds, 3),
        total=round(time.perf_counter() - began, 3),
    )
    return JudgedProgram(_state(work, runs, judged, branches, seconds), runs, judged)


def _run_ranks(work: ProgramInputs, progress: Progress, heard: HeardOfRank) -> tuple[ProgramInputs, list[RankRun]]:
    """One after the other: each may take all the memory that a program is allowed. What the first one does says which
    others are run, and of how many: a program may start its ranks itself."""
    runs: list[RankRun] = []

    def run(rank: int) -> None:
        # What torch reads while it is imported, a server has read for all of its children.
        alike = work.line.world_size > 1 and not work.line.environment and work.walled is None
        server = rank_process.lasting_server() if alike else None
        progress(f"running rank {rank} of {work.line.world_size}")
        order = _order(work, rank, runs)
        if runs:
            order = replace(order, heard=runs[-1].told)
        found = rank_process.run_rank(order, work.limits, server, work.walled, partial(heard, rank))
        runs.append(replace(found, schedules=runs[0].schedules) if runs else found)

    first = choose_ranks(work.ranks, work.line.most_ranks)[0]
    try:
        run(first)
    except MoreGpusError as error:
        work = replace(work, line=replace(work.line, node_gpus=error.gpus))
        run(first)
    except rank_process.CrashedError as error:
        if (shown := show_named_gpus(work.line, error.text)) is None:
            raise
        work = replace(work, line=shown)
        run(first)
    if nodes := runs[0].nodes:
        work = replace(work, line=work.line.with_ranks(nodes, runs[0].processes_per_node))
        refuse_ranks_on_slice(work.gpu.name, work.line.world_size, "--gpu")
    for rank in more_ranks(work.ranks, work.line.world_size, runs[0]):
        run(rank)
    return work, runs


def _order(work: ProgramInputs, rank: int, before: Sequence[RankRun] = ()) -> ProgramOrder:
    """The first rank is ended when enough was seen of it, the others after as many iterations."""
    ended = [run.iterations for run in before if not run.is_whole]
    as_it_is = work.steps or work.steps_at or work.until_read
    return ProgramOrder(
        line=work.line,
        rank=rank,
        gpu=FoundGpu(
            product=known.product if (known := catalog.by_name(work.gpu.name)) else "",
            arch=work.gpu.arch,
            total_bytes=work.gpu.total_bytes,
            name=work.gpu.name,
            outside_bytes=outside(work.gpu, work.software, [work.line.world_size]).total_bytes,
        ),
        target=work.gpu.target,
        torch=work.software.torch,
        steps=ended[0] if ended else work.steps,
        steps_at=work.steps_at or tuple(each.step for run in before[:1] for each in run.steps_at),
        usual=before[0].usual if before and not work.steps_at else 0,
        until_read=work.until_read and not ended,
        batches=0 if work.batches is None and as_it_is else work.batches,
        patience_seconds=work.patience_seconds,
        seconds=work.limits.seconds,
        strict=work.strict,
        writes=work.writes,
        packages=work.packages,
        kernels=work.kernels,
    )


def judge_devices(work: ProgramInputs, share: RankShare) -> list[JudgedShare]:
    """What the ranks will hold on each GPU that their process uses, and where they would run out of memory."""
    run = share.run
    judge, traces = _judge_of(work, run), divide_by_device(run.trace)
    if len(traces) > max(len(run.devices), 1):
        raise malformed_error("its events are of more devices than it has used")
    devices = run.devices if len(traces) > 1 else (None,)
    return [_judge_device(judge, share, trace, device) for device, trace in zip(devices, traces, strict=False)]


def _judge_of(work: ProgramInputs, run: RankRun) -> Judge:
    rules = Rules.from_conf(run.allocator_conf)
    if run.memory_fraction < 1.0:
        rules = replace(rules, per_process_memory_fraction=run.memory_fraction)
    applied = work.calibration.applied_to(work.gpu.name, work.software.torch)
    return Judge(
        rules=rules,
        gpu=work.gpu,
        torch=work.software.torch,
        capacity_bytes=work.gpu.total_bytes,
        held=applied.correct_outside(outside(work.gpu, work.software, run.communicators)),
        calibration=work.calibration,
        kind=Kind(program=True, several_ranks=work.line.world_size > 1),
        torch_difference=torch_difference(work.software.torch),
        gpus_per_node=work.line.processes_per_node,
        tokens=work.tokens,
    )


def _judge_device(judge: Judge, share: RankShare, trace: Trace, device: int | None) -> JudgedShare:
    """On one GPU; None: the only one of its process."""
    run = share.run
    ranks = RankClass(run.rank, RankSet.parse(share.ranks), {} if device is None else {"cuda": device})
    is_open = run.schedules or (run.varying is not None and not trace.drawn)
    facts = RunFacts(
        name_moments=lambda statement: (*batch_moments(trace.drawn, statement), *_step_moments(run, statement)),
        seen_iterations=run.iterations if is_open else 0,
        steps_to_run=run.steps_to_run,
        is_whole=run.is_whole or run.infers,
        uses_several_gpus=len(run.devices) > 1,
    )
    judged = judge.judge(RankTrace(ranks, trace), facts)
    if (failure := judged.failure) is None:
        return JudgedShare(share, judged, "")
    where = share.named if device is None else f"{share.named}, cuda:{device},"
    fails = (
        f"The first allocation that fails on {where} is in iteration {failure.iteration}, "
        f"{failure.phase.value.replace('_', ' ')} (the program is not told, and goes on): {failure.message}"
    )
    return JudgedShare(share, judged, fails)


def _state(
    work: ProgramInputs,
    runs: Sequence[RankRun],
    judged: Sequence[JudgedShare],
    branches: tuple[BranchStatement, ...],
    seconds: Seconds,
) -> Plan:
    first, traces = runs[0], [run.trace for run in runs]
    seen = {kind: max(run.seen.get(kind, 0) for run in runs) for kind in first.seen}
    host = _state_hosts(runs, work.line, work.host_memory_bytes)
    plan = Plan(
        command=work.command,
        gpu=work.gpu.name or work.gpu.arch,
        nodes=work.line.nodes,
        gpus_per_node=work.line.processes_per_node,
        ending=first.ending,
        iterations=first.iterations,
        counted=first.counted,
        seen=seen,
        repeated=sum(repeat.times * repeat.iterations for repeat in first.trace.repeats),
        unseen=(
            *_describe_unseen(
                seen,
                min(run.idle_optimizers for run in runs),
                has_rows=any(phase.phase is Phase.EVAL for each in judged for phase in each.statement.phases),
                infers=all(run.infers for run in runs),
            ),
            *describe_sizes(first),
            *dict.fromkeys(each.judged.unreplayed for each in judged if each.judged.unreplayed),
            *_describe_later_steps(first, work.steps_at),
            *_describe_failures(runs),
        ),
        allocator_conf=first.allocator_conf,
        communicators=tuple(first.communicators),
        calibrated=work.calibration.applied_to(work.gpu.name, work.software.torch).calibrated,
        rank_classes=tuple(judgement.statement for judgement in judged),
        steps_at=tuple(
            StepStatement(step.step, step.allocated_bytes, step.reserved_bytes)
            for step in judged[0].share.run.steps_at
            if work.steps_at
        ),
        host=host,
        pool=state_pool(
            work.gpu.name, [judgement.statement for judgement in judged], host, work.line.processes_per_node
        ),
        assumptions=(
            *_assumptions_of(runs),
            *_explain_differences(judged),
            *_describe_devices(runs),
            *(_describe_untried(judgement.share) for judgement in judged if judgement.share.untried),
        ),
        out_of_memory=tuple(judgement.fails for judgement in judged if judgement.fails),
        provenance=identity.provenance_of(work.calibration),
        branches=branches,
        notes=(
            *notes.workspace_notes(traces),
            *(() if work.walled is not None else tell_asked_gpus(work.line)),
            *notes.approximation_notes(each.statement for each in judged),
            *notes.newer_software_notes({"torch": identity.installed_torch()}),
            *notes.another_torch_notes(work.software.torch),
            *(host.assumptions if work.host_memory_bytes else ()),
        ),
        sources=(
            *outside(work.gpu, work.software, first.communicators).provenance,
            *notes.interval_sources(each.statement for each in judged),
        ),
        seconds=seconds,
    )
    shown = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return replace(plan, **CommandMask(work.command, work.line.environment).mask_run(shown))


def _state_hosts(runs: Sequence[RankRun], line: LaunchLine, capacity_bytes: int) -> HostStatement:
    """The statement about the nodes; `capacity_bytes` is what the program may use of each, 0 where nobody has said."""
    spoken = [(run, rank_set(ranks)) for run, ranks in speakers(runs, line.world_size)]
    host = state_hosts(
        [TracedHost(ranks, run.trace.host, run.trace.host_assumed) for run, ranks in spoken],
        ranks_per_node=line.processes_per_node,
        capacity_bytes=capacity_bytes,
        conf=runs[0].allocator_conf,
        loader=DataLoader(),
    )
    untried = [
        f"Of ranks {ranks} rank {run.rank} was run, and the others are taken to hold on the host what it does: what"
        " only some rank does there (the first of a node, say) is not seen."
        for run, ranks in spoken
        if len(ranks) > 1
    ]
    return replace(host, assumptions=(*host.assumptions, *untried))


MOST_BRANCHES = 3
"""Lines that are tried."""
MOST_SECONDS = 60.0
"""Of the run so far: what takes longer is not run again unasked."""
_LONGER = 3.0
_WOULD_FIND_FILES = "not tried: with --allow-writes it would find the files of the first run, and change them"


def try_branches(
    taken: RankRun,
    order: ProgramOrder,
    run: Callable[[ProgramOrder], RankRun],
    judge: Callable[[RankRun], RankClassStatement],
) -> tuple[BranchStatement, ...]:
    """What would have come of the other answers, of the first lines that there are. `order` is the one of the run that
    was `taken`."""
    tried = [branch for branch in taken.branches if not branch.raises][:MOST_BRANCHES]
    again = replace(
        order,
        steps=order.steps if taken.is_whole else taken.iterations,
        steps_at=order.steps_at or tuple(each.step for each in taken.steps_at),
        usual=taken.usual,
        seconds=_LONGER * taken.trace.seconds + MOST_SECONDS,
    )

    def find_outcome(branch: Branch) -> BranchStatement:
        statement = BranchStatement(place=branch.place, taken=branch.answer, outcome="")
        reasons = {
            "an error is raised there": branch.raises,
            "not tried: others were": branch not in tried,
            "not tried: it takes long": taken.trace.seconds > MOST_SECONDS,
            _WOULD_FIND_FILES: order.writes,
        }
        if any(reasons.values()):
            return replace(statement, outcome=next(reason for reason, holds in reasons.items() if holds))
        try:
            other = run(replace(again, otherwise=branch.place))
        except PlannerError as error:
            return replace(statement, outcome=f"the program ends: {error.problem}")
        if other.failed and not taken.failed:
            return replace(statement, outcome=f"the program ends: {other.ending}")
        if are_alike(other.trace, taken.trace):
            return replace(statement, outcome="the same memory")
        before, after = judge(taken).peak, judge(other).peak
        ending = f"; it {other.ending.removeprefix('the program ')}" if other.is_whole and not taken.is_whole else ""
        return replace(
            statement,
            outcome=f"other memory{ending}",
            allocated_bytes=before.allocated_bytes,
            reserved_bytes=before.reserved_bytes,
            other_allocated_bytes=after.allocated_bytes,
            other_reserved_bytes=after.reserved_bytes,
        )

    return tuple(map(find_outcome, taken.branches))


def _describe_unseen(seen: Mapping[str, int], idle_optimizers: int, *, has_rows: bool, infers: bool) -> Iterator[str]:
    """Sentences for what a run did not show, whose memory is in no figure. `has_rows`: whether phases of evaluation are
    shown all the same."""
    if infers:
        yield "no training was seen: it is planned as inference"
        return
    if not seen.get("eval"):
        besides = " besides the forwards without gradients that are part of iterations" if has_rows else ""
        yield f"no evaluation was seen{besides}"
    elif seen["eval"] == 1:
        yield "one evaluation was seen, and none after it"
    if not seen.get("save"):
        yield "no checkpoint was seen being saved"
    if idle_optimizers:
        yield f"{'an optimizer' if idle_optimizers == 1 else f'{idle_optimizers} optimizers'} did not step twice"


def _step_moments(run: RankRun, statement: RankClassStatement) -> Iterator[NamedMoment]:
    """What the steps take at which its sizes are largest."""
    until = [*(step.iteration for step in run.steps_at[1:]), run.iterations + 1]
    for step, end in zip(run.steps_at, until, strict=False):
        peaks = [phase for phase in statement.phases if step.iteration <= phase.iteration < end]
        if step.why and peaks:
            yield moment_of_phases(f"step {step.step:,}", peaks, statement, step.why)


def _describe_later_steps(run: RankRun, asked: Sequence[int]) -> Iterator[str]:
    """Which steps of a schedule were not run, as far as that is known."""
    yield from run.schedules
    if run.schedules:
        yield "what later steps take is in no figure (--steps-at 0,900 runs steps that are named)"
    missed = set(asked) - {step.step for step in run.steps_at}
    if missed:
        yield f"the program did not come to step {', '.join(map(str, sorted(missed)))}"


def _describe_failures(runs: Sequence[RankRun]) -> Iterator[str]:
    """Of ranks that failed after they had trained; the ending says it of the first."""
    for run in runs:
        if run.failed:
            named = "" if run is runs[0] else f"{run.ending.replace('the program', f'rank {run.rank}')}; "
            yield f"{named}what comes after that is in no figure"


def _assumptions_of(runs: Sequence[RankRun]) -> list[AssumptionStatement]:
    """By all ranks that were run; what several of them assume is said once, as often as one does."""
    counts: dict[tuple[str, str, str], int] = {}
    for run in runs:
        for assumption in run.assumptions:
            key = (assumption.about.value, assumption.text, assumption.place)
            counts[key] = max(counts.get(key, 0), assumption.count)
    return [
        AssumptionStatement(about=about, text=text, place=place, count=count)
        for (about, text, place), count in counts.items()
    ]


def _describe_untried(share: RankShare) -> AssumptionStatement:
    """For which ranks a class speaks though they were not run."""
    staged = "each as one of its pipeline's stage that was run"
    why = staged if share.run.talkers else "only collectives travel between them"
    return AssumptionStatement(
        about="ranks",
        text=f"not every rank was run: {share.ranks} are taken to do as rank {share.run.rank} does ({why})",
    )


def _describe_devices(runs: Sequence[RankRun]) -> Iterator[AssumptionStatement]:
    """What figures of a process with several GPUs rest on."""
    several = [run for run in runs if len(run.devices) > 1]
    if several:
        yield AssumptionStatement(
            about="device",
            text="a process uses several GPUs: each has its own figures, and what torch.cuda says of memory in the"
            " program is that of all of them together",
        )
    if several and len(runs) > 1:
        named = ranks_text(str(rank_set(run.rank for run in several)))
        yield AssumptionStatement(
            about="device",
            text=f"{named} took memory of more than one GPU: what processes hold together on one is in no figure",
        )


_MOST_PLACES = 3
"""Lines that are named where a host reads."""


def _explain_differences(judged: Sequence[JudgedShare]) -> Iterator[AssumptionStatement]:
    """Of classes that ask for the same bytes in the same order, and hold them longer because their host never waits;
    the fullest comes first."""
    fullest, *others = judged
    for other in others:
        more = fullest.statement.peak.allocated_bytes - other.statement.peak.allocated_bytes
        run, fullest_run = other.share.run, fullest.share.run
        read = _reads(run) - _reads(fullest_run)
        if more > 0 and read and _requests(run.trace) == _requests(fullest_run.trace):
            where = ", ".join(sorted(read)[:_MOST_PLACES])
            yield AssumptionStatement(
                about="ranks",
                text=f"with the same allocations {fullest.share.named} hold {show_bytes(more)} more at the peak than"
                f" {other.share.named}: there the host reads values of the GPU ({where}), waits for it by that, and"
                " what earlier work has used is free then. A host that reads nothing runs ahead of the GPU: NCCL's"
                " groups (until their watchdog has looked) and other streams (record_stream) keep it longer",
            )


def _reads(run: RankRun) -> Counter[str]:
    """How often the host has waited for a value, by the lines that read it."""
    reads: Counter[str] = Counter()
    for assumption in run.assumptions:
        if assumption.about is About.VALUE:
            reads[assumption.place] += assumption.count
    return reads


def _requests(trace: Trace) -> list[int]:
    """The bytes of all allocations in their order."""
    return [event.requested_bytes for event in trace.written_out() if isinstance(event, Alloc)]

"""States what was judged as a plan: of every rank and node, what it takes for granted, and what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from planner.allocator.host.nodes import TracedHost, state_hosts
from planner.allocator.host.statement import HostStatement
from planner.events import Alloc, Phase
from planner.job.loading import bundle
from planner.job.masking import CommandMask
from planner.job.overhead import outside
from planner.job.schema import Job
from planner.planning import identity, notes
from planner.planning.inputs import ProgramInputs
from planner.planning.judging import JudgedRank
from planner.planning.long_runs import describe_sizes
from planner.planning.memory_pool import state_pool
from planner.planning.program_ranks import RankShare, rank_set
from planner.report.statement import (
    AssumptionStatement,
    BranchStatement,
    Plan,
    Seconds,
    StepStatement,
    TrainedAdapter,
    ranks_text,
)
from planner.tracing.program.assumptions import About
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.rank_trace import Trace
from planner.units import show_bytes


def state_plan(
    work: ProgramInputs,
    ranks: Sequence[RankShare],
    judged: Sequence[JudgedRank],
    branches: tuple[BranchStatement, ...],
    seconds: Seconds,
) -> Plan:
    """The plan of all `ranks`, of which those that do alike were `judged` together."""
    runs = [share.run for share in ranks]
    traces, unreplayed = [run.trace for run in runs], _unreplayed(judged)
    conf, statements = runs[0].allocator_conf, tuple(one.statement for one in judged)
    host = state_job_hosts(work, ranks)
    plan = Plan(
        gpu=work.gpu.name or work.gpu.arch,
        nodes=work.line.nodes,
        gpus_per_node=work.line.processes_per_node,
        allocator_conf=conf,
        calibrated=work.applied_calibration.calibrated,
        rank_classes=statements,
        another_torch=notes.another_torch_than(work.software.torch, work.special_parts),
        host=host,
        pool=state_pool(work.gpu.name, statements, host, work.line.processes_per_node),
        provenance=identity.provenance_of(work.calibration),
        notes=(
            *notes.notes_of(work, traces, statements),
            *(() if work.command else (f"{clause[0].upper()}{clause[1:]}." for clause in unreplayed)),
            *(host.assumptions if work.host_memory_bytes else ()),
        ),
        sources=(
            *outside(work.gpu, work.software, runs[0].communicators).provenance,
            *notes.interval_sources(statements),
            *work.applied_calibration.sentences,
        ),
        seconds=seconds,
    )
    if work.command:
        plan = _add_runs(plan, work, runs, judged, branches)
    return plan if work.job is None else _add_spec(plan, work.job, traces)


def _unreplayed(judged: Sequence[JudgedRank]) -> list[str]:
    """Why batches that differ in size were not all replayed."""
    return list(dict.fromkeys(one.unreplayed for one in judged if one.unreplayed))


def _add_spec(plan: Plan, job: Job, traces: Sequence[Trace]) -> Plan:
    """The plan of a spec's program: it is stored under what the spec says."""
    return replace(
        plan,
        plan_id=identity.plan_id_of(job, plan.provenance),
        trace_id=identity.trace_id_of(job),
        job=bundle(job),
        adapter=_state_adapter(job, traces),
    )


def _state_adapter(job: Job, traces: Sequence[Trace]) -> TrainedAdapter | None:
    adapted = next((trace.adapted for trace in traces if trace.adapted), {})
    if (adapter := job.model.adapter) is None or not adapted:
        return None
    return TrainedAdapter(kind=adapter.kind, rank=adapter.r, modules=tuple(adapted), parameters=sum(adapted.values()))


def _add_runs(
    plan: Plan,
    work: ProgramInputs,
    runs: Sequence[RankRun],
    judged: Sequence[JudgedRank],
    branches: tuple[BranchStatement, ...],
) -> Plan:
    """The plan with what a command's program did on paper, its secrets masked."""
    first = runs[0]
    seen = {kind: max(run.seen.get(kind, 0) for run in runs) for kind in first.seen}
    plan = replace(
        plan,
        command=work.command,
        planned=work.line.planned,
        ending=first.ending,
        iterations=first.iterations,
        counted=first.counted,
        seen=seen,
        repeated=sum(repeat.times * repeat.iterations for repeat in first.trace.repeats),
        unseen=(
            *_describe_unseen(
                seen,
                min(run.idle_optimizers for run in runs),
                has_rows=any(phase.phase is Phase.EVAL for one in judged for phase in one.statement.phases),
                infers=all(run.infers for run in runs),
            ),
            *describe_sizes(first),
            *_unreplayed(judged),
            *_describe_later_steps(first, work.steps_at),
            *_describe_failures(runs),
        ),
        communicators=tuple(first.communicators),
        steps_at=tuple(
            StepStatement(step.step, step.allocated_bytes, step.reserved_bytes)
            for step in judged[0].share.run.steps_at
            if work.steps_at
        ),
        assumptions=(
            *_assumptions_of(runs),
            *_explain_differences(judged),
            *_describe_devices(runs),
            *(_describe_untried(one.share) for one in judged if one.share.untried),
        ),
        out_of_memory=tuple(one.failing for one in judged if one.failing),
        branches=branches,
    )
    shown = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return replace(plan, **CommandMask(work.command, work.line.environment).mask_run(shown))


def state_job_hosts(work: ProgramInputs, ranks: Sequence[RankShare]) -> HostStatement:
    """What every node holds at least on the host. Raises AllocatorConfError for wrong settings of pinned memory."""
    host = state_hosts(
        [TracedHost(share.rank_class.ranks, share.run.trace.host, share.run.trace.host_assumed) for share in ranks],
        ranks_per_node=work.line.processes_per_node,
        capacity_bytes=work.host_memory_bytes,
        conf=ranks[0].run.allocator_conf,
    )
    untried = [
        f"Of {share.named} rank {share.run.rank} was run, and the others are taken to hold on the host what it does:"
        " what only some rank does there (the first of a node, say) is not seen."
        for share in ranks
        if share.untried
    ]
    return replace(host, assumptions=(*host.assumptions, *untried))


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


def _explain_differences(judged: Sequence[JudgedRank]) -> Iterator[AssumptionStatement]:
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

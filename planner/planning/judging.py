"""Judges what a rank did: its events through the allocator, what lives outside it, growth, and whether that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.allocator.long_runs.drawn_batches import CannotComposeError, compose_batches
from planner.allocator.long_runs.growth import find_end, growth_of
from planner.allocator.replay import SettledReplay, replay_until_settled
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Phase, Repeat
from planner.job.kinds import Kind, Trait, is_compiled
from planner.job.layout import RankClass
from planner.job.overhead import communicators_of, outside
from planner.job.schema import Gpu, Job
from planner.planning import identity, trace_variants
from planner.planning.inputs import ProgramInputs, inputs_of_job
from planner.planning.long_runs import LongRun, batch_moments, moment_of_phases, name_moment
from planner.planning.program_ranks import RankShare
from planner.planning.trace_variants import without_timing
from planner.report.attribution import phase_spans, state_rank_class
from planner.report.statement import (
    FirstRuns,
    GrowthStatement,
    HostLead,
    NamedMoment,
    OutsideAllocator,
    RankClassStatement,
    StepTime,
)
from planner.report.style import size
from planner.runtime.garbage_collection import pause_collection
from planner.timing.pending_frees import ToldEvents, complete_frees
from planner.timing.step_time import INTERVAL, price_for_clock, time_step
from planner.tracing.program.rank_orders import RankRun, divide_by_device, malformed_error
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.interval import Calibration, interval
from planner.upstream.torch_releases import SPECIAL_PARTS, largest_difference
from planner.verdict import Verdict, decide, worst
from planner.versions import minor_of

_HOST_FACTORS = (0.5, 2.0)
"""How much longer a host may take for a launch than estimated: the same job is replayed with both."""
_NEVER_AHEAD = 1000.0
"""As much longer as no GPU is behind."""
_MOST_GROWTH = 1.5
"""What an epoch may add to what is reserved of its largest batches alone, relative. The most that was seen: 1.38, of a
Llama of two layers under DDP, 60 batches of lognormal lengths, torch 2.13 (0.93 GiB became 2.21)."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank class and what its representative did."""

    rank_class: RankClass
    trace: Trace


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """The first allocation for which the GPU has no room, in CUDA's words, and where it is."""

    phase: Phase
    iteration: int
    message: str


@dataclass(frozen=True, slots=True)
class JudgedRank:
    """What ranks will hold on one GPU of their process. The events of `trace` are those of the timeline: what repeats
    is in both until it changes nothing any more."""

    share: RankShare
    trace: Trace
    statement: RankClassStatement
    timeline: Timeline
    failure: FailedAllocation | None = None
    unreplayed: str = ""
    """Why not all batches were replayed that differ in size; empty if they were."""

    @property
    def rank_trace(self) -> RankTrace:
        return RankTrace(self.share.rank_class, self.trace)

    @property
    def failing(self) -> str:
        """Where they would run out of memory, as a sentence; empty if they do not."""
        if (failure := self.failure) is None:
            return ""
        device = self.share.rank_class.coordinates.get("cuda")
        where = self.share.named if device is None else f"{self.share.named}, cuda:{device},"
        return (
            f"The first allocation that fails on {where} is in iteration {failure.iteration}, "
            f"{failure.phase.value.replace('_', ' ')} (the program is not told, and goes on): {failure.message}"
        )


class Judge:
    """What a run is judged by: the allocator's rules, what it may use of its GPU, what it holds outside the allocator,
    and how far off such figures are."""

    def __init__(self, work: ProgramInputs, run: RankRun) -> None:
        """A process that limits itself (`set_per_process_memory_fraction`) has that share and what lies outside the
        allocator, which is not counted in it (torch 2.13, CUDACachingAllocator.cpp, `allowed_memory_maximum`)."""
        self.work, self.run = work, run
        self.rules = Rules.from_conf(run.allocator_conf)
        if run.memory_fraction < 1.0:
            self.rules = replace(self.rules, per_process_memory_fraction=run.memory_fraction)
        held = outside(work.gpu, work.software, run.communicators)
        self.held = work.applied_calibration.correct_outside(held)
        self.capacity_bytes = work.capacity_bytes or work.gpu.total_bytes
        if (fraction := self.rules.per_process_memory_fraction) < 1:
            allowed = int(fraction * work.gpu.total_bytes) + self.held.total_bytes
            self.capacity_bytes = min(self.capacity_bytes, allowed)

    @property
    def outside(self) -> OutsideAllocator:
        """What each rank holds outside the allocator."""
        return OutsideAllocator(cuda_context_bytes=self.held.cuda_context_bytes, nccl_bytes=self.held.nccl_bytes)

    @property
    def room_bytes(self) -> int:
        """What the allocator may reserve."""
        return max(self.capacity_bytes - self.held.total_bytes, 0)

    def told(self, trace: Trace, host: float = 1.0) -> ToldEvents:
        """As `told_on`, of its GPU."""
        return told_on(self.work.gpu, self.work.line.processes_per_node, trace, host)

    def add_host_lead(self, statement: RankClassStatement, trace: Trace, usual: ToldEvents) -> RankClassStatement:
        """With what hosts of other speeds reserve, in the interval and the verdict too; `trace` with its launches."""
        if not usual.hangs_on_time:
            return statement
        never_ahead = self.told(trace, _NEVER_AHEAD)
        if (never_ahead.events, never_ahead.repeats) == (usual.events, usual.repeats):
            return statement

        def reserved_by(told: ToldEvents) -> int:
            if (told.events, told.repeats) == (usual.events, usual.repeats):
                return statement.peak.reserved_bytes
            return self.replay(trace.as_told(told))[0].timeline.peak_reserved_bytes

        least, *between = map(reserved_by, (never_ahead, *(self.told(trace, factor) for factor in _HOST_FACTORS)))
        reserved = statement.peak.reserved_bytes
        if {reserved} == {least, *between}:
            return statement
        lead = HostLead(
            seconds=round(usual.longest_lead_ns / 1e9, 4),
            least_bytes=least,
            host_interval_bytes=(min(reserved, *between), max(reserved, *between)),
        )
        kind = statement.kind.having(Trait.HOST_AHEAD)
        widened = self.widen(replace(statement, kind=kind), trace, reserved, *lead.host_interval_bytes)
        return replace(widened, host_lead=lead)

    def add_other_workspaces(self, statement: RankClassStatement, trace: Trace) -> RankClassStatement:
        """With what is reserved where cuDNN asks for other workspaces, in the interval and the verdict too; as it is
        where they are approximated, and runs of which they were not known are in the interval."""
        if trace.other_cudnn:
            return statement
        varied = (replace(trace, events=events) for events in trace_variants.vary_workspaces(trace.events))
        reserved = [self.replay(each)[0].timeline.peak_reserved_bytes for each in varied]
        return self.widen(statement, trace, min(reserved), max(reserved)) if reserved else statement

    def widen(self, statement: RankClassStatement, trace: Trace, *reserved_bytes: int) -> RankClassStatement:
        """With an interval that covers those of these reserved bytes as well, and the verdict of that."""
        between = self.interval_of(trace, statement.kind)
        others = [between(reserved + self.held.total_bytes) for reserved in reserved_bytes]
        lows, highs = zip(statement.peak.interval_bytes, *others, strict=True)
        peak = replace(statement.peak, interval_bytes=(min(lows), max(highs)))
        tight = statement.verdict is Verdict.FITS and max(highs) > statement.capacity_bytes
        return replace(statement, peak=peak, verdict=Verdict.TIGHT if tight else statement.verdict)

    def replay(self, trace: Trace) -> tuple[SettledReplay, SettledReplay]:
        """Without a limit, and on the GPU. What it would have taken is asked for only where it does not get it."""
        capped = replay_until_settled(
            trace.events, trace.repeats, self.rules, self.room_bytes, device_bytes=self.work.gpu.total_bytes
        )
        runs_out = capped.timeline.out_of_memory is not None
        return replay_until_settled(trace.events, trace.repeats, self.rules) if runs_out else capped, capped

    def judge(self, share: RankShare, trace: Trace) -> JudgedRank:
        """What follows from what a rank did on one GPU: its replay, what else the rank may hold, and whether that fits.
        Of a compiled job the larger of a run with Inductor's cache empty and one with it filled, with both reserved
        peaks."""
        filled = without_timing(trace)
        judged = self._judge(share, trace)
        if filled is None:
            return judged
        both, order = [judged, self._judge(share, filled)], list(Verdict)
        larger = max(both, key=lambda one: (order.index(one.statement.verdict), one.statement.peak.device_bytes))
        of_empty, of_filled = (one.statement.peak.reserved_bytes for one in both)
        first_runs = FirstRuns(empty_cache_bytes=of_empty, filled_cache_bytes=of_filled)
        return replace(larger, statement=replace(larger.statement, first_runs=first_runs))

    def _judge(self, share: RankShare, launched: Trace) -> JudgedRank:
        run, told = self.run, self.told(launched)
        trace = launched.as_told(told)
        unlimited, capped = self.replay(trace)
        statement = self.state(share.rank_class, unlimited, capped, trace)
        statement = self.add_host_lead(statement, launched, told)
        statement = self.add_other_workspaces(statement, trace)
        moments = (*batch_moments(trace.drawn, statement), *_step_moments(run, statement))
        statement, unreplayed = self.add_all_batches(replace(statement, moments=moments), trace)
        if run.schedules or (run.varying is not None and not trace.drawn):  # larger sizes may come
            verdict = worst([statement.verdict, Verdict.TIGHT])
            statement = replace(statement, judged_iterations=run.iterations, verdict=verdict)
        statement = add_growth(statement, unlimited.events, unlimited.repeats, self.rules, run.steps_to_run)
        settled = replace(trace, events=unlimited.events, repeats=unlimited.repeats)
        return JudgedRank(share, settled, statement, unlimited.timeline, _find_failure(capped), unreplayed)

    def add_all_batches(self, statement: RankClassStatement, trace: Trace) -> tuple[RankClassStatement, str]:
        """The statement on what was run, as it is after all batches that were drawn ahead, in their order; and why they
        were not replayed, where they were not. `trace` is as its allocator was told."""
        loaders = [loader for loader in trace.drawn if loader.trains]
        if self.run.is_whole or self.run.infers or not loaders:
            return statement, ""
        loader, micro_batches = loaders[0], self.work.micro_batches
        try:
            if len(loaders) > 1:
                raise CannotComposeError("several data loaders are trained on")
            if len(self.run.devices) > 1:
                raise CannotComposeError("the process uses several GPUs")
            batches = compose_batches(
                trace.written_out(),
                loader.given,
                loader.order,
                self.run.steps_to_run,
                micro_batches=micro_batches,
            )
        except CannotComposeError as cannot:
            most = int((1 + _MOST_GROWTH) * statement.peak.reserved_bytes)
            return self.widen(statement, trace, most), (
                f"what the allocator caches over {loader.drawn:,} batches of other sizes was not replayed ({cannot}):"
                f" the interval allows for {_MOST_GROWTH:.0%} more to be reserved"
            )
        long = LongRun.replay(batches, self.rules, self.room_bytes, self.work.gpu.total_bytes)
        unseen = max(loader.epoch - len(loader.order), 0) // max(micro_batches, 1)
        judged = long.judge(statement, self.interval_of(trace, statement.kind), unseen, batches.off)
        if judged.peak.reserved_bytes > statement.peak.reserved_bytes:
            steps = len(long.unlimited.allocated_bytes) + long.unlimited.left_out
            moment = long.name_moment(statement, f"{steps:,} steps, with batches in their order,")
            judged = replace(judged, moments=(*judged.moments, moment))
        return judged, ""

    def state(
        self, rank_class: RankClass, unlimited: SettledReplay, capped: SettledReplay, trace: Trace
    ) -> RankClassStatement:
        """The statement of ranks that do as this trace does, by its replays without a limit and on the GPU."""
        kind = self.kind_of(trace)
        statement = state_rank_class(
            representative=rank_class.representative,
            ranks=str(rank_class.ranks),
            coordinates=rank_class.coordinates,
            events=unlimited.events,
            unlimited=unlimited.timeline,
            capped=capped.timeline,
            outside=self.outside,
            kind=kind,
            interval=self.interval_of(trace, kind),
            capacity_bytes=self.capacity_bytes,
        )
        return replace(statement, step=self.step_of(trace))

    def step_of(self, trace: Trace) -> StepTime | None:
        """How long an iteration of it takes."""
        timed = time_step(trace.work, self.work.gpu.name, self.work.line.processes_per_node)
        if timed is None:
            return None
        low, high = (round(share * timed.step, 6) for share in INTERVAL)
        return StepTime(
            seconds=round(timed.step, 6),
            interval_seconds=(low, high),
            computing_seconds=round(timed.computing, 6),
            communicating_seconds=round(timed.communicating, 6),
            launching_seconds=round(timed.launching, 6),
            tokens_per_second=round(self.work.tokens / timed.step, 1),
        )

    def kind_of(self, trace: Trace) -> Kind:
        """That of a process that does as this trace does."""
        kind = replace(self.work.kind, several_ranks=self.work.line.world_size > 1, compiled=is_compiled(trace.work))
        has_other = trace.other_cudnn and trace_variants.has_workspaces(trace.events)
        return kind.having(Trait.OTHER_CUDNN) if has_other else kind

    def interval_of(self, trace: Trace, kind: Kind) -> Callable[[int], tuple[int, int]]:
        """The interval of device bytes of a process of this kind that does as this trace does."""
        software = self.work.software
        return lambda device_bytes: interval(
            device_bytes,
            self.held,
            self.work.calibration,
            kind=kind,
            unknown_workspaces=bool(trace.unknown_workspaces),
            gpu=self.work.gpu.name,
            torch=software.torch,
            torch_difference=torch_difference(software.torch, self.work.special_parts),
        )


def told_on(gpu: Gpu, gpus_per_node: int, trace: Trace, host: float = 1.0) -> ToldEvents:
    """The events of a trace as a GPU's allocator sees them: what is freed is free once the GPU has passed it. The host
    takes `host` times as long for a launch as estimated."""
    if not trace.is_timed:
        return ToldEvents(trace.events, trace.repeats)
    prices = price_for_clock(trace.work.kernels, gpu.name, gpu.arch, gpus_per_node)
    return complete_frees(trace.events, trace.repeats, prices.with_host(host))


def judge_trace(job: Job, rank_trace: RankTrace, calibration: Calibration) -> JudgedRank:
    """What follows from a trace of a spec's program."""
    (judged,) = judge_devices(inputs_of_job(job, calibration), share_of_class(job, rank_trace))
    return judged


def share_of_class(job: Job, rank_trace: RankTrace) -> RankShare:
    """A rank of a spec's program that was run for its class, which the spec's mesh says."""
    rank_class = rank_trace.rank_class
    run = RankRun(
        rank=rank_class.representative,
        trace=rank_trace.trace,
        ending="",
        iterations=0,
        allocator_conf=job.allocator.conf,
        communicators=tuple(communicators_of(job)),
    )
    return RankShare(run, rank_class)


def judge_elsewhere(
    job: Job, rank_trace: RankTrace, calibration: Calibration, known: RankClassStatement
) -> RankClassStatement:
    """The statement on the same trace on another GPU than that of the `known` one: without a replay where that GPU has
    room for all that was reserved, or none for what was allocated. Moments beyond the usual step are left out."""
    judge = Judge(inputs_of_job(job, calibration), share_of_class(job, rank_trace).run)
    peak, trace = known.peak, rank_trace.trace
    room, simple = judge.room_bytes, job.train.lengths is None and not trace.is_timed
    sure = not known.cache_releases and (peak.reserved_bytes <= room or peak.allocated_bytes > room)
    if not (simple and sure) or judge.rules.garbage_collection_threshold:
        return judge_trace(job, rank_trace, calibration).statement
    device = peak.reserved_bytes + judge.held.total_bytes
    between = judge.interval_of(trace, known.kind)(device)
    runs_out = peak.allocated_bytes > room
    verdict = decide(runs_out=runs_out, highest_bytes=between[1], capacity_bytes=judge.capacity_bytes)
    return replace(
        known,
        peak=replace(peak, device_bytes=device, interval_bytes=between),
        capacity_bytes=judge.capacity_bytes,
        verdict=verdict,
        cache_releases=0,
        outside_allocator=judge.outside,
        moments=(),
        growth=None,
        step=judge.step_of(trace),
    )


def judge_devices(work: ProgramInputs, share: RankShare) -> list[JudgedRank]:
    """What the ranks will hold on each GPU that their process uses."""
    run, judge = share.run, Judge(work, share.run)
    traces = divide_by_device(run.trace)
    if len(traces) > max(len(run.devices), 1):
        raise malformed_error("its events are of more devices than it has used")
    shares = [share]
    if len(traces) > 1:
        classes = [replace(share.rank_class, coordinates={"cuda": device}) for device in run.devices]
        shares = [replace(share, rank_class=rank_class) for rank_class in classes]
    with pause_collection():
        return [judge.judge(of_device, trace) for of_device, trace in zip(shares, traces, strict=False)]


def _step_moments(run: RankRun, statement: RankClassStatement) -> Iterator[NamedMoment]:
    """What the steps take at which its sizes are largest."""
    until = [*(step.iteration for step in run.steps_at[1:]), run.iterations + 1]
    for step, end in zip(run.steps_at, until, strict=False):
        peaks = [phase for phase in statement.phases if step.iteration <= phase.iteration < end]
        if step.why and peaks:
            yield moment_of_phases(f"step {step.step:,}", peaks, statement, step.why)


def _find_failure(capped: SettledReplay) -> FailedAllocation | None:
    failed = capped.timeline.out_of_memory
    if failed is None:
        return None
    span = next(span for span in phase_spans(capped.events) if failed.event_index < span.last)
    return FailedAllocation(span.phase, span.iteration, failed.message())


def torch_difference(asked: str, parts: frozenset[str] = SPECIAL_PARTS) -> float:
    """How far plans of this torch and of the one that makes the plans here were seen to differ, relative, where jobs
    have no other special part than these."""
    return largest_difference(minor_of(asked), identity.installed_torch(), parts)


def add_growth(
    statement: RankClassStatement,
    events: Sequence[Event],
    repeats: Sequence[Repeat],
    rules: Rules,
    steps_to_run: int = 0,
) -> RankClassStatement:
    """The statement with what its steps keep and when the memory is full of it, and the verdict of a job that has so
    many steps (0: not known); as it is where its steps keep nothing, as those of which iterations repeat."""
    growth = None if any(repeat.iterations for repeat in repeats) else growth_of(events, rules)
    if growth is None:
        return statement
    room = max(statement.capacity_bytes - statement.outside_allocator.total_bytes, 0)
    end, origin, peak = find_end(events, growth, rules, room), growth.origin, statement.peak
    maker = " of ".join(name for name in (origin.op, origin.module) if name)
    shape = f" ({' × '.join(map(str, origin.shape))} {origin.dtype})" if origin.shape else ""
    sentence = f"Each step keeps {size(growth.bytes_per_step)} that it never frees"
    sentence += f", most of it by {maker}{shape}" if maker else ""
    sentence += f", in the last {growth.steps} seen"
    if end is not None:
        how = "replayed" if end.exact else "estimated from what is left"
        sentence += f": the {size(room)} there are for the allocator are full in step {end.step:,} ({how})"
        stated = GrowthStatement(bytes_per_step=growth.bytes_per_step, full_in_step=end.step, steps_to_run=steps_to_run)
        statement = replace(
            statement, growth=stated, verdict=Verdict.EXCEEDS if stated.is_reached else statement.verdict
        )
    when = ((end.phase if end else None) or peak.phase, end.step if end else peak.iteration)
    sizes = (peak.allocated_bytes, peak.reserved_bytes)
    moment = name_moment(statement, "kept with every step", f"{sentence}.", when, sizes)
    return replace(statement, moments=(*statement.moments, replace(moment, device_bytes=peak.device_bytes)))

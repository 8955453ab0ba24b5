"""Judges what a rank did: its events through the allocator, what lives outside it, growth, and whether that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.allocator.long_runs.growth import End, Growth, find_end, growth_of
from planner.allocator.long_runs.replayed_run import ComposedRun, ReplayedRun, compose
from planner.allocator.replay import SettledReplay, replay_until_settled
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Mark, Phase, Repeat
from planner.job.layout import Mesh, RankClass, axis_degrees
from planner.job.overhead import OutsideEstimate, communicators_of, outside_of
from planner.job.sampled_runs import longest_batch, steps_for_the_longest
from planner.job.schema import Gpu, Job
from planner.planning import identity, post_training
from planner.report.rank_class import state_rank_class
from planner.report.statement import NamedMoment, OutsideAllocator, PhaseStatement, RankClassStatement, Verdict
from planner.report.style import size
from planner.tracing import garbage_collection
from planner.tracing.rank_trace import EngineFigures, Trace
from planner.truth.calibration.correction import (
    AppliedCorrection,
    Approximation,
    approximations_of_kernels,
    approximations_of_spec,
)
from planner.truth.calibration.interval import Calibration, interval
from planner.upstream.torch_releases import largest_difference
from planner.versions import minor_of


def evaluation_moments(job: Job, found: SettledReplay, statement: RankClassStatement) -> tuple[NamedMoment, ...]:
    """One for what is gathered and one for what is generated, in the highest of the evaluations."""
    evaluation = job.train.eval
    if evaluation is None:
        return ()
    moments = []
    if evaluation.gather and (phase := _highest(statement, Phase.EVAL)) is not None:
        ranks = Mesh.of(job.parallel).world_size
        of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
        per_step = _more_with_each(found, Phase.EVAL)
        until = f"after every {evaluation.accumulation_steps} steps" if evaluation.accumulation_steps else "at its end"
        sentence = (
            f"An evaluation of {evaluation.batches} steps gathers the {evaluation.gather}{of_ranks} on the GPU, and"
            f" takes them to the host {until}: {size(per_step)} more with each step, there twice while they are joined."
        )
        moments.append(_moment("gathered evaluation", phase, statement, sentence))
    if evaluation.generate is not None and (phase := _highest(statement, Phase.GENERATE)) is not None:
        generate = evaluation.generate
        per_token = _more_with_each(found, Phase.GENERATE)
        prompt = generate.prompt_tokens or job.train.sequence_length
        keeps = "keys and values" if generate.use_cache else "what is kept"
        sentence = (
            f"{generate.max_new_tokens} tokens are generated for {generate.batch} prompts of {prompt}: {keeps} grow by"
            f" {size(per_token)} with each token."
        )
        moments.append(_moment("generation", phase, statement, sentence))
    return tuple(moments)


def _highest(statement: RankClassStatement, phase: Phase) -> PhaseStatement | None:
    found = [each for each in statement.phases if each.phase is phase]
    return max(found, key=lambda each: each.peak_allocated_bytes, default=None)


def _moment(name: str, phase: PhaseStatement, statement: RankClassStatement, sentence: str) -> NamedMoment:
    return NamedMoment(
        name=name,
        phase=phase.phase,
        iteration=phase.iteration,
        allocated_bytes=phase.peak_allocated_bytes,
        reserved_bytes=phase.peak_reserved_bytes,
        device_bytes=phase.peak_reserved_bytes + statement.outside_allocator.total_bytes,
        sentence=sentence,
    )


def _more_with_each(found: SettledReplay, phase: Phase) -> int:
    """By how many allocated bytes the parts of a phase differ in the middle of it, from one beginning to the next."""
    allocated = found.timeline.allocated_bytes
    at = [allocated[index] for index in _marks(found.events, phase) if index < len(allocated)]
    more = sorted(after - before for before, after in pairwise(at))
    return more[len(more) // 2] if more else 0


def _marks(events: Sequence[Event], phase: Phase) -> list[int]:
    return [index for index, event in enumerate(events) if isinstance(event, Mark) and event.phase is phase]


def growth_moments(
    events: Sequence[Event], repeats: Sequence[Repeat], statement: RankClassStatement, rules: Rules
) -> tuple[NamedMoment, ...]:
    """The moment at which the memory is full of what steps keep; none for a run that is steady, as one is of which
    iterations repeat."""
    growth = None if any(each.iterations for each in repeats) else growth_of(events, rules)
    if growth is None:
        return ()
    outside = statement.outside_allocator.total_bytes
    room = max(statement.capacity_bytes - outside, 0)
    end = find_end(events, growth, rules, room)
    return (
        NamedMoment(
            name="kept with every step",
            phase=(end.phase if end else None) or statement.peak.phase,
            iteration=end.step if end else statement.peak.iteration,
            allocated_bytes=statement.peak.allocated_bytes,
            reserved_bytes=statement.peak.reserved_bytes,
            device_bytes=statement.peak.device_bytes,
            sentence=_sentence(growth, end, room),
        ),
    )


def _sentence(growth: Growth, end: End | None, room: int) -> str:
    origin = growth.origin
    maker = " of ".join(each for each in (origin.op, origin.module) if each)
    shape = f" ({' × '.join(map(str, origin.shape))} {origin.dtype})" if origin.shape else ""
    made = f", most of it by {maker}{shape}" if maker else ""
    kept = f"Each step keeps {size(growth.bytes_per_step)} that it never gives up"
    told = f"{kept}{made}, in the last {growth.steps} seen"
    if end is None:
        return f"{told}."
    how = "replayed" if end.exact else "reckoned from what is left"
    return f"{told}: the {size(room)} there are for the allocator are full in step {end.step} ({how})."


_DATA_AXES = ("dp_replicate", "dp_shard", "ep")
"""Axes along which each rank has batches of its own."""
_MOST_SAID = 8
"""Steps with a new maximum that a sentence names."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run replayed as the job would run, within the room that there is, and the trace of its worst step alone."""

    job: Job
    composed: ComposedRun
    capped: ReplayedRun
    unlimited: ReplayedRun
    """What it would have taken; the same, where the memory does not run out."""
    worst_step: Trace

    def judge(self, alone: RankClassStatement, interval: Callable[[int], tuple[int, int]]) -> RankClassStatement:
        """The statement on the worst step alone, as it is after all the steps before it."""
        peak, run = alone.peak, self.unlimited
        reserved = max(peak.reserved_bytes, run.peak_reserved_bytes)
        device = reserved + alone.outside_allocator.total_bytes
        between = interval(device)
        return replace(
            alone,
            peak=replace(peak, reserved_bytes=reserved, device_bytes=device, interval_bytes=between),
            verdict=self._verdict(alone, between[1]),
            cache_releases=max(alone.cache_releases, self.capped.cache_releases),
            moments=(self._longest_batch(alone), self._many_lengths(alone)),
        )

    def _verdict(self, alone: RankClassStatement, highest: int) -> Verdict:
        if alone.verdict is Verdict.EXCEEDS or self.capped.out_of_memory_step:
            return Verdict.EXCEEDS
        if self.capped.cache_releases or highest > alone.capacity_bytes:
            return Verdict.TIGHT
        return alone.verdict

    def _longest_batch(self, alone: RankClassStatement) -> NamedMoment:
        run, train = self.unlimited, self.job.train
        step, longest = run.worst_step, longest_batch(train)
        index = run.allocated_bytes.index(max(run.allocated_bytes))
        until = [each.reserved_bytes for each in run.growths if each.step <= step]
        reserved = max(until, default=alone.peak.reserved_bytes)
        once = _once_in(steps_for_the_longest(train))
        ranks = _ranks_with_own_batches(self.job)
        any_rank = f", on one of {ranks} ranks {_once_in(steps_for_the_longest(train, ranks))}" if ranks > 1 else ""
        added = "" if step <= self.composed.drawn else f"; none of the {self.composed.drawn} steps drawn has one"
        return NamedMoment(
            name="longest batch",
            phase=run.phases[index],
            iteration=step,
            allocated_bytes=run.allocated_bytes[index],
            reserved_bytes=reserved,
            device_bytes=reserved + alone.outside_allocator.total_bytes,
            sentence=f"The longest batch of {longest} tokens, expected {once}{any_rank}{added}.",
        )

    def _many_lengths(self, alone: RankClassStatement) -> NamedMoment:
        run, composed = self.unlimited, self.composed
        last = run.growths[-1]
        index = min(last.step, len(run.allocated_bytes)) - 1
        more = run.peak_reserved_bytes - alone.peak.reserved_bytes
        by = f"{size(more)} more than the longest batch alone" if more > 0 else "no more than the longest batch alone"
        lengths = len({length for step in composed.steps for length in step})
        told = f"After {len(composed.steps)} steps of {lengths} lengths {size(last.reserved_bytes)} are reserved, {by};"
        parts = [f"{told} new maxima came in {_steps_said([each.step for each in run.growths])}"]
        if composed.rounding:
            parts.append(composed.rounding)
        if run.left_out:
            parts.append(f"{run.left_out} of the steps were not replayed, which would take too long")
        if self.capped.out_of_memory_step:
            phase = self.capped.out_of_memory_phase.value.replace("_", " ")
            parts.append(f"the memory runs out in step {self.capped.out_of_memory_step}, {phase}")
        return NamedMoment(
            name="after many lengths",
            phase=last.phase,
            iteration=last.step,
            allocated_bytes=run.allocated_bytes[index],
            reserved_bytes=last.reserved_bytes,
            device_bytes=last.reserved_bytes + alone.outside_allocator.total_bytes,
            sentence="; ".join(parts) + ".",
        )


def replay_run(job: Job, trace: Trace, room_bytes: int) -> JudgedRun:
    """The run of a job with `train.lengths`, of whose steps this is the trace, in so much room."""
    rules = Rules.from_conf(job.allocator.conf)
    composed = compose(job, trace.written_out())
    capped = composed.replay(rules, room_bytes, device_bytes=job.cluster.gpu.total_bytes)
    unlimited = composed.replay(rules) if capped.out_of_memory_step else capped
    worst = replace(trace, events=composed.worst_step_alone(unlimited.worst_step), repeats=())
    return JudgedRun(job, composed, capped, unlimited, worst)


def _ranks_with_own_batches(job: Job) -> int:
    degrees = axis_degrees(job.parallel)
    return math.prod(degrees[axis] for axis in _DATA_AXES)


def _once_in(steps: float) -> str:
    if steps == float("inf"):
        return "never"
    return "in every step" if round(steps) <= 1 else f"once in {round(steps)} steps"


def _steps_said(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[-_MOST_SAID:]))
    left = len(steps) - _MOST_SAID
    return f"steps {shown}" + (f" (and in {left} before)" if left > 0 else "")


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank class and what its representative did."""

    rank_class: RankClass
    trace: Trace


@dataclass(frozen=True, slots=True)
class JudgedTrace:
    """What follows from a trace. The events of `rank_trace` are those of the timeline: what repeats is in both until it
    changes nothing any more."""

    rank_trace: RankTrace
    statement: RankClassStatement
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What a process is judged by, of a spec or of a program: the allocator's rules, what it may use of its GPU, what
    it holds outside the allocator, and how far off such figures are."""

    rules: Rules
    gpu: Gpu
    torch: str
    capacity_bytes: int
    held: OutsideEstimate
    calibration: Calibration
    approximations: tuple[Approximation, ...] = ()
    """Besides those of the kernels of a trace."""

    @property
    def room_bytes(self) -> int:
        """What the allocator may reserve."""
        return max(self.capacity_bytes - self.held.total_bytes, 0)

    def replay(self, trace: Trace) -> tuple[SettledReplay, SettledReplay]:
        """Without a limit, and on the GPU. What it would have taken is asked for only where it does not get it."""
        capped = replay_until_settled(
            trace.events, trace.repeats, self.rules, self.room_bytes, device_bytes=self.gpu.total_bytes
        )
        runs_out = capped.timeline.out_of_memory is not None
        return replay_until_settled(trace.events, trace.repeats, self.rules) if runs_out else capped, capped

    def state(
        self, rank_class: RankClass, events: Sequence[Event], timelines: tuple[Timeline, Timeline], trace: Trace
    ) -> RankClassStatement:
        """The statement of ranks that do as this trace does; `timelines` are those without a limit and on the GPU."""
        unlimited, capped = timelines
        return state_rank_class(
            representative=rank_class.representative,
            ranks=str(rank_class.ranks),
            coordinates=rank_class.coordinates,
            events=events,
            unlimited=unlimited,
            capped=capped,
            outside=OutsideAllocator(cuda_context_bytes=self.held.cuda_context_bytes, nccl_bytes=self.held.nccl_bytes),
            interval=self.interval_of(trace),
            capacity_bytes=self.capacity_bytes,
        )

    def interval_of(self, trace: Trace) -> Callable[[int], tuple[int, int]]:
        """The interval of device bytes of a process that does as this trace does."""
        return lambda device_bytes: interval(
            device_bytes,
            self.held,
            self.calibration,
            unknown_workspaces=bool(trace.unknown_workspaces),
            workspace_margin_bytes=trace.workspace_margin_bytes,
            approximations=(*approximations_of_kernels(trace.unknown_workspaces), *self.approximations),
            gpu=self.gpu.name,
            torch=self.torch,
            torch_difference=torch_difference(self.torch),
        )


def judge_trace(job: Job, rank_trace: RankTrace, calibration: Calibration) -> JudgedTrace:
    """One trace's replay and what follows from it."""
    judge = Judge(
        rules=Rules.from_conf(job.allocator.conf),
        gpu=job.cluster.gpu,
        torch=job.software.torch,
        capacity_bytes=job.cluster.capacity_bytes,
        held=calibration_of(job, calibration).correct_outside(outside_of(job)),
        calibration=calibration,
        approximations=approximations_of_spec(job),
    )
    with garbage_collection.pause_collection():
        if rank_trace.trace.engine is not None:
            return _judge_shared(job, rank_trace, rank_trace.trace.engine, judge)
        return _judge(job, rank_trace, judge)


def _judge(job: Job, rank_trace: RankTrace, judge: Judge) -> JudgedTrace:
    trace = rank_trace.trace
    run = replay_run(job, trace, judge.room_bytes) if job.train.lengths is not None else None
    trace = run.worst_step if run is not None else trace
    found, capped = judge.replay(trace)
    statement = judge.state(rank_trace.rank_class, found.events, (found.timeline, capped.timeline), trace)
    if run is not None:
        statement = run.judge(statement, judge.interval_of(trace))
    moments = growth_moments(found.events, found.repeats, statement, judge.rules)
    statement = replace(statement, moments=(*statement.moments, *evaluation_moments(job, found, statement), *moments))
    if is_planned_as_eager(job) and statement.verdict is Verdict.EXCEEDS:
        statement = replace(statement, verdict=Verdict.TIGHT)
    settled = replace(trace, events=found.events, repeats=found.repeats)
    return JudgedTrace(replace(rank_trace, trace=settled), statement, found.timeline)


def _judge_shared(job: Job, rank_trace: RankTrace, engine: EngineFigures, judge: Judge) -> JudgedTrace:
    """As `_judge`, of a trainer that shares its GPU with an engine."""
    trace, events = rank_trace.trace, rank_trace.trace.written_out()
    said = judge.interval_of(trace)
    found = post_training.SharedGpuJudge.of(job, events, engine, judge.held, communicators_of(job), said).judge()
    alone = judge.state(rank_trace.rank_class, events, (found.timeline, found.timeline), trace)
    rows = found.shared.phases
    together = (max(row.interval_bytes[0] for row in rows), max(row.interval_bytes[1] for row in rows))
    peak = replace(alone.peak, device_bytes=found.shared.fullest().total_bytes, interval_bytes=together)
    statement = replace(
        alone, peak=peak, verdict=found.verdict, cache_releases=found.cache_releases, shared=found.shared
    )
    written = replace(rank_trace, trace=replace(trace, events=events, repeats=()))
    return JudgedTrace(written, statement, found.timeline)


def torch_difference(asked: str) -> float:
    """How far plans of this torch and of the one that makes the plans here were seen to differ, relative."""
    return largest_difference(minor_of(asked), identity.installed_torch())


def is_planned_as_eager(job: Job) -> bool:
    """Whether the job compiles and asks for the plan of its eager step."""
    return job.train.compile is not None and job.train.compile.planned_as == "eager"


def calibration_of(job: Job, calibration: Calibration) -> AppliedCorrection:
    """What was learnt from measurements on the GPU and torch of the job."""
    return calibration.applied_to(job.cluster.gpu.name, job.software.torch)

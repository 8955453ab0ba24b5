"""Judges the batches of a program's data: the largest of them, and all of them in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.allocator.long_runs.drawn_batches import CannotComposeError, compose_batches
from planner.events import Phase
from planner.planning.long_runs import LongRun, name_moment
from planner.report.statement import NamedMoment, PhaseStatement, RankClassStatement
from planner.tracing.program.batch_sizes import LARGEST, DrawnBatches, VaryingSize
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.rank_trace import Trace

if TYPE_CHECKING:
    from planner.planning.judging import Judge, RunFacts

_MOST_GROWTH = 1.5
"""What an epoch may add to what is reserved of its largest batches alone, relative. The most that was seen: 1.38, of a
Llama of two layers under DDP, 60 batches of lognormal lengths, torch 2.13 (0.93 GiB became 2.21)."""


def add_all_batches(
    judge: Judge, facts: RunFacts, statement: RankClassStatement, trace: Trace
) -> tuple[RankClassStatement, str]:
    """The statement on what was run, as it is after all batches that were drawn ahead, in their order; and why they
    were not replayed, where they were not. `trace` is as its allocator was told."""
    loaders = [loader for loader in trace.drawn if loader.trains]
    if facts.is_whole or not loaders:
        return statement, ""
    loader = loaders[0]
    try:
        if len(loaders) > 1:
            raise CannotComposeError("several data loaders are trained on")
        if facts.uses_several_gpus:
            raise CannotComposeError("the process uses several GPUs")
        batches = compose_batches(
            trace.written_out(),
            loader.given,
            loader.order,
            facts.steps_to_run,
            micro_batches=facts.micro_batches,
            empty_cache_every=facts.empty_cache_every,
        )
    except CannotComposeError as cannot:
        most = int((1 + _MOST_GROWTH) * statement.peak.reserved_bytes)
        return judge.widen(statement, trace, most), (
            f"what the allocator caches over {loader.drawn:,} batches of other sizes was not replayed ({cannot}): the"
            f" interval allows for {_MOST_GROWTH:.0%} more to be reserved"
        )
    long = LongRun.replay(batches, judge.rules, judge.room_bytes, judge.gpu.total_bytes)
    unseen = max(loader.epoch - len(loader.order), 0)
    judged = long.judge(statement, judge.interval_of(trace, statement.kind), unseen, batches.off)
    if judged.peak.reserved_bytes > statement.peak.reserved_bytes:
        steps = f"{len(long.unlimited.allocated_bytes) + long.unlimited.left_out:,} steps, with batches in their order,"
        judged = replace(judged, moments=(*judged.moments, long.name_moment(statement, steps)))
    return judged, ""


def batch_moments(loaders: Iterable[DrawnBatches], statement: RankClassStatement) -> Iterator[NamedMoment]:
    """What the chosen batches of its data take: of those of one iteration (gradients accumulate) its figures are those
    of the last, which is the largest."""
    for loader in loaders:
        largest = {(batch.iteration, batch.evaluates): batch for batch in loader.tried}
        for batch in largest.values():
            alike = [
                phase
                for phase in statement.phases
                if phase.iteration <= batch.iteration and batch.evaluates == (phase.phase is Phase.EVAL)
            ]
            if not alike or not batch.iteration:
                continue
            # An iteration that repeats the one before it is not stated again.
            last = alike[-1].iteration
            peaks = [phase for phase in alike if phase.iteration == last]
            yield moment_of_phases(
                batch.name,
                peaks,
                statement,
                f"{loader.size.name or 'The batch'} is {list(batch.shape)}: of {loader.drawn:,} batches"
                f" {batch.as_large:,} {'is' if batch.as_large == 1 else 'are'} at least as large.",
            )


def moment_of_phases(
    name: str, phases: Sequence[PhaseStatement], statement: RankClassStatement, sentence: str
) -> NamedMoment:
    """The highest of these phases."""
    peak = max(phases, key=lambda phase: phase.peak_allocated_bytes)
    reserved = max(phase.peak_reserved_bytes for phase in phases)
    return name_moment(statement, name, sentence, (peak.phase, peak.iteration), (peak.peak_allocated_bytes, reserved))


def describe_sizes(run: RankRun) -> Iterator[str]:
    """That sizes vary, and how far that is in the figures."""
    for loader in run.trace.drawn:
        epoch = f" of {loader.epoch:,} batches" if loader.epoch > loader.drawn else " batches"
        yield f"the sizes of batches vary: {_say_size(loader.size)} among {loader.drawn:,}{epoch} drawn ahead"
        if loader.drawn != loader.epoch:
            yield "larger ones may come, and are in no figure (--batches draws more)"
        if not all(batch.iteration for batch in loader.tried if batch.name == LARGEST):
            yield "the largest batch was not given to the program: it is in no figure"
    if run.varying is not None and not run.trace.drawn:
        yield f"the sizes of inputs vary: {_say_size(run.varying)}; larger ones may come, and are in no figure"


def _say_size(size: VaryingSize) -> str:
    name, place = size.name or "the batch", f" ({size.place})" if size.place else ""
    return f"{name}{place} is {list(size.smallest)} to {list(size.largest)}, in {size.different:,} shapes"

"""The moments of an evaluation that keeps more with each of its parts: what it gathers, and what it generates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from planner.allocator.settled import SettledReplay
from planner.events import Event, Mark, Phase
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.report.named_moments import NamedMoment
from planner.report.statement import PhaseStatement, RankClassStatement
from planner.report.style import size


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

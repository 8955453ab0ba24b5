"""What the report on a program rests on: what its ranks assumed, which of them were not run, and why ranks differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from planner.events import Alloc
from planner.planning.program_ranks import RankShare
from planner.report.program_statement import AssumptionStatement
from planner.report.statement import RankClassStatement
from planner.running.assumptions import About
from planner.running.order import RankRun
from planner.tracing.traced import Trace
from planner.units import show_bytes

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

"""Which ranks of a program are run, and for which ranks each of them speaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import SpecError
from planner.events import Event, Free
from planner.layout.rank_sets import RankSet
from planner.running.order import RankRun
from planner.tracing.traced import Trace

PLACE = "--ranks"


@dataclass(frozen=True, slots=True)
class RankShare:
    """A run, the ranks that are taken to be like it (`0-6`), and whether some of these were not run."""

    run: RankRun
    ranks: str
    untried: bool


def choose_ranks(wanted: str, world_size: int) -> list[int]:
    """`auto`: the first and the last, which differ first where ranks differ; `all`; or numbers between commas.

    Raises SpecError for anything else, and for ranks that the world does not have.
    """
    if wanted == "auto":
        return sorted({0, world_size - 1})
    if wanted == "all":
        return list(range(world_size))
    parts = wanted.split(",")
    if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts):
        raise SpecError(f"ranks {wanted[:80]!a}", allowed="auto, all, or numbers between commas (0,7)", place=PLACE)
    found = sorted({int(each) for each in parts})
    if found[-1] >= world_size:
        raise SpecError(
            f"there is no rank {found[-1]} in a world of {world_size}", allowed=f"0 to {world_size - 1}", place=PLACE
        )
    return found


def share_ranks(runs: Sequence[RankRun], world_size: int) -> list[RankShare]:
    """Runs whose events are equal speak together; of what lies between the first and the last that were run, each
    rank is taken to do as the next lower one that was."""
    heads: list[RankRun] = []
    spans: list[list[tuple[int, int]]] = []
    for number, run in enumerate(runs):
        end = runs[number + 1].rank if number + 1 < len(runs) else world_size
        begin = run.rank if number else 0
        alike = next(
            (
                at
                for at, each in enumerate(heads)
                if each.trace.repeats == run.trace.repeats and do_the_same(each.trace.events, run.trace.events)
            ),
            None,
        )
        if alike is None:
            heads.append(run)
            spans.append([(begin, end - 1)])
        else:
            spans[alike].append((begin, end - 1))
    ran = [each.rank for each in runs]
    return [
        RankShare(head, str(RankSet.of(each)), any(_misses(span, ran) for span in each))
        for head, each in zip(heads, spans, strict=True)
    ]


def are_alike(trace: Trace, other: Trace) -> bool:
    """Whether two ranks tell the allocator the same, as often."""
    return trace.repeats == other.repeats and do_the_same(trace.events, other.events)


def do_the_same(events: Sequence[Event], others: Sequence[Event]) -> bool:
    """Whether two ranks tell the allocator the same. Blocks that are given up one directly after the other may come in
    another order: it is that of the threads of a process."""
    return len(events) == len(others) and all(
        one == other for one, other in zip(_with_frees_in_order(events), _with_frees_in_order(others), strict=True)
    )


def _with_frees_in_order(events: Sequence[Event]) -> Iterator[Event]:
    freed: list[int] = []
    for event in events:
        if isinstance(event, Free):
            freed.append(event.block)
            continue
        yield from map(Free, sorted(freed))
        freed.clear()
        yield event
    yield from map(Free, sorted(freed))


def _misses(span: tuple[int, int], ran: Sequence[int]) -> bool:
    first, last = span
    return sum(first <= rank <= last for rank in ran) <= last - first

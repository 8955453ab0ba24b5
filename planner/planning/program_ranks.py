"""Which ranks of a program are run, and which ranks each of them represents."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from pathlib import Path

from planner.errors import SpecError
from planner.events import Category, Event, Free, Role
from planner.job.launching.line import LaunchLine
from planner.job.layout import RankClass
from planner.job.named_counts import named_count
from planner.job.rank_sets import RankSet
from planner.report.statement import ranks_text
from planner.tracing.program.program_files import called, own_files, source_line
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.rank_trace import Trace

PLACE = "--ranks"
_MOST_STAGES = 16
"""Of a pipeline whose stages are each run unasked."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """A run, the class of the ranks that it represents, and whether some of these were not run though nothing says
    that they do the same."""

    run: RankRun
    rank_class: RankClass
    untried: bool = False

    @property
    def ranks(self) -> str:
        """`0-6`."""
        return str(self.rank_class.ranks)

    @property
    def named(self) -> str:
        """`rank 3`, or `ranks 0-6`."""
        return ranks_text(self.ranks)


class _Stages:
    """Along which strides of ranks single messages travel: (stride, count). Ranks at different places of one are
    different stages of a pipeline; what only collectives join does the same."""

    def __init__(self, talkers: Sequence[Sequence[int]]) -> None:
        """From the groups of rank 0 over which they travelled. Groups whose ranks are not evenly spaced say nothing."""
        axes = set()
        for ranks in talkers:
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 0
            if stride and list(ranks) == list(range(ranks[0], ranks[-1] + 1, stride)):
                axes.add((stride, len(ranks)))
        self._axes = sorted(axes)

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Its place along each axis."""
        return tuple(rank // stride % count for stride, count in self._axes)

    def representatives(self) -> set[int]:
        """The lowest rank of every stage; none if there are more than are run unasked."""
        places = [range(0, stride * count, stride) for stride, count in self._axes]
        lowest = {sum(place) for place in product(*places)}
        return lowest if len(lowest) <= _MOST_STAGES else set()


def choose_ranks(wanted: str, world_size: int) -> list[int]:
    """`auto`: the first (which often does more: it prints, it saves), the second, one of the middle and the last;
    `all`; or numbers between commas.

    Raises SpecError for anything else, and for ranks that the world does not have.
    """
    if wanted == "auto":
        # The middle of an even number of nodes is the first rank of one, which may do what only such ranks do.
        middle = world_size // 2 + 1
        return sorted({rank for rank in (0, 1, middle, world_size - 1) if rank < world_size})
    if wanted == "all":
        return list(range(world_size))
    parts = wanted.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise SpecError(f"ranks {wanted[:80]!a}", allowed="auto, all, or numbers between commas (0,7)", place=PLACE)
    ranks = sorted({int(part) for part in parts})
    if ranks[-1] >= world_size:
        raise SpecError(
            f"there is no rank {ranks[-1]} in a world of {world_size}", allowed=f"0 to {world_size - 1}", place=PLACE
        )
    return ranks


def more_ranks(wanted: str, world_size: int, first: RankRun) -> list[int]:
    """What is run after the first rank, ascending: with `auto` one rank of each stage that it talks with, too."""
    chosen = set(choose_ranks(wanted, world_size))
    if wanted == "auto":
        chosen |= {rank for rank in _Stages(first.talkers).representatives() if rank < world_size}
    return sorted(chosen - {first.rank})


Told = Callable[[Trace], Trace]
"""The events of a trace as the allocator of the GPU sees them."""


def unite_alike(shares: Sequence[RankShare], told: Told = lambda trace: trace) -> list[RankShare]:
    """Those of which the allocator is told the same are one, though one host waits for the GPU where another does
    not."""

    def are_one(head: RankRun, run: RankRun) -> bool:
        return are_alike(head.trace, run.trace) or are_alike(told(head.trace), told(run.trace))

    united: list[RankShare] = []
    for share in shares:
        place = next((place for place, head in enumerate(united) if are_one(head.run, share.run)), None)
        if place is None:
            united.append(share)
            continue
        head = united[place]
        ranks = rank_set([*head.rank_class.ranks, *share.rank_class.ranks])
        united[place] = replace(
            head, rank_class=replace(head.rank_class, ranks=ranks), untried=head.untried or share.untried
        )
    return united


def share_ranks(runs: Sequence[RankRun], world_size: int) -> list[RankShare]:
    """All ranks among those that were run. One that was not is taken to do as the middle one of those of its stage that
    were: the first rank does what no other one does (it reads the loss, it gathers what is saved)."""
    ran, stages = [run.rank for run in runs], _Stages(runs[0].talkers)
    of_stage: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in ran:
        of_stage[stages.of_rank(rank)].append(rank)
    represented: dict[int, list[int]] = {rank: [rank] for rank in ran}
    for rank in sorted(set(range(world_size)).difference(ran)):
        near = of_stage.get(stages.of_rank(rank)) or ran
        represented[near[len(near) // 2]].append(rank)
    return [
        RankShare(run, RankClass(run.rank, rank_set(represented[run.rank]), {}), untried=len(represented[run.rank]) > 1)
        for run in runs
    ]


def rank_set(ranks: Iterable[int]) -> RankSet:
    """The set of ranks that come one by one."""
    return RankSet.of((rank, rank) for rank in ranks)


def are_alike(trace: Trace, other: Trace) -> bool:
    """Whether two ranks tell the allocator the same, as often."""
    return trace.repeats == other.repeats and do_the_same(trace.events, other.events)


def do_the_same(events: Sequence[Event], others: Sequence[Event]) -> bool:
    """Whether two ranks tell the allocator the same. Blocks that are given up one directly after the other may come in
    another order: it is that of the threads of a process. The last batch has no role yet where a rank was ended before
    its forward."""
    pairs = zip_longest(_with_frees_in_order(events), _with_frees_in_order(others))
    return all(one == other for one, other in pairs)


def _with_frees_in_order(events: Sequence[Event]) -> Iterator[Event]:
    freed: list[int] = []
    for event in events:
        if isinstance(event, Free):
            freed.append(event.block)
            continue
        if isinstance(event, Role) and event.category is Category.INPUT:
            continue
        yield from map(Free, sorted(freed))
        freed.clear()
        yield event
    yield from map(Free, sorted(freed))


_SPEAKS_OF_GPUS = re.compile(r"gpu|cuda|device", re.IGNORECASE)
_ALL_GPUS = (-1, "auto", "-1")
"""Lightning's Trainer(devices=...)."""


def show_named_gpus(line: LaunchLine, traceback: str) -> LaunchLine | None:
    """The line with the GPUs that the program's own arguments name, after it has ended with an error about GPUs; None
    where somebody has said how many there are, or nothing does."""
    named = named_count(line.arguments)
    if line.node_gpus or not line.may_start_ranks or named is None or not _SPEAKS_OF_GPUS.search(traceback):
        return None
    note = f"the program did not start with one GPU and is shown {named.gpus}, as its {named.written} says"
    return replace(line, node_gpus=named.gpus, notes=(*line.notes, note))


def describe_asked_gpus(line: LaunchLine) -> Iterator[str]:
    """A sentence on a program of one rank whose files ask how many GPUs there are, which nobody has said."""
    if line.node_gpus or not line.may_start_ranks or line.world_size > 1:
        return
    for path, tree in own_files(line, Path(line.folder) if line.folder else None).items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            every = (
                isinstance(each.value, ast.Constant) and each.value.value in _ALL_GPUS
                for each in call.keywords
                if each.arg == "devices"
            )
            if called(call) == "device_count" or any(every):
                yield (
                    f"The program asks how many GPUs there are ({source_line(path, call)}) and is planned with one:"
                    " --gpus N says it."
                )
                return

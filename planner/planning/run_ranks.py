"""Runs the ranks of a program that say what all of them do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from planner.errors import ProgramError
from planner.events import Alloc
from planner.hardware import catalog
from planner.job.named_gpus import refuse_ranks_on_slice
from planner.job.overhead import outside
from planner.planning.inputs import ProgramInputs
from planner.planning.planned_classes import Progress
from planner.planning.program_ranks import choose_ranks, more_ranks, show_named_gpus
from planner.tracing.program import rank_process
from planner.tracing.program.rank_orders import Gpu as FoundGpu
from planner.tracing.program.rank_orders import MoreGpusError, ProgramOrder, RankRun

HeardOfRank = Callable[[int, bytes], None]
"""Gets a rank and what it has printed."""


def run_ranks(work: ProgramInputs, progress: Progress, heard: HeardOfRank) -> tuple[ProgramInputs, list[RankRun]]:
    """One after the other: each may take all the memory that a program is allowed. What the first one does says which
    others are run, and of how many: a program may start its ranks itself. Raises ProgramError if none of them held
    anything on a GPU."""
    runs: list[RankRun] = []

    def run(rank: int) -> None:
        # What torch reads while it is imported, a server has read for all of its children.
        alike = work.line.world_size > 1 and not work.line.environment and work.walled is None
        server = rank_process.lasting_server() if alike else None
        progress(f"running rank {rank} of {work.line.world_size}")
        order = order_of(work, rank, runs)
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
    if not any(isinstance(event, Alloc) for run in runs for event in run.trace.events):
        raise ProgramError(
            f"the program held nothing on a GPU, so there is no verdict on it ({runs[0].ending})",
            allowed="a program that puts tensors on a GPU",
            remedy="tell it to use the GPU (--device cuda, or as it names that), and not to train on the host",
            place=work.line.program,
        )
    return work, runs


def order_of(work: ProgramInputs, rank: int, before: Sequence[RankRun] = ()) -> ProgramOrder:
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

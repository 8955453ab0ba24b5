"""A run of a program on paper, or a plan, beside what the program took on real GPUs, rank by rank."""

from __future__ import annotations

from collections.abc import Iterator

from planner.comparing.comparison import Comparison, Figure
from planner.comparing.plan_comparison import Predicted, class_of, differing_torch
from planner.errors import PlannerError, SpecError
from planner.job.gpu_names import look_up
from planner.measuring.measured_program import MeasuredProgram, MeasuredRank
from planner.report.program_statement import ProgramStatement
from planner.report.statement import RankClassStatement


def with_program(predicted: Predicted, measured: MeasuredProgram, *, rank: int | None = None) -> list[Comparison]:
    """One for each rank of the measured program, or of this rank; one that left no figures has a note of why.

    Raises PlannerError if no rank has figures, there is no such rank, or nothing was predicted for one.
    """
    ranks = [each for each in measured.ranks if rank is None or each.rank == rank]
    missing = [each for each in measured.without_figures if rank is None or each.rank == rank]
    if not ranks:
        said = "; ".join(f"rank {each.rank}: {each.reason}" for each in missing) or f"there is no rank {rank}"
        raise PlannerError(
            f"the measured program has no figures ({said})",
            allowed="what planner measure -- COMMAND wrote of a program that used a GPU",
            remedy="measure it again where it comes to its end" if missing else "--rank of those that were measured",
        )
    found = {each.rank: _beside(predicted, measured, each) for each in ranks}
    for each in missing:
        note = f"no figures: {each.reason}"
        found[each.rank] = Comparison(case=f"rank {each.rank}", device="", peak=(), notes=(note,))
    return [found[number] for number in sorted(found)]


def _beside(predicted: Predicted, measured: MeasuredProgram, rank: MeasuredRank) -> Comparison:
    statement = class_of(predicted, rank.rank)
    return Comparison(
        case=f"rank {rank.rank}",
        device=rank.gpu,
        peak=tuple(_figures(statement, rank)),
        notes=tuple(_notes(predicted, measured, rank)),
    )


def _figures(statement: RankClassStatement, rank: MeasuredRank) -> Iterator[Figure]:
    """Device bytes are the highest reserved and what was outside at the end: the driver keeps no peak of a process."""
    peak = statement.peak
    yield Figure(name="allocated", predicted=peak.allocated_bytes, measured=rank.peak.allocated_bytes)
    yield Figure(name="reserved", predicted=peak.reserved_bytes, measured=rank.peak.reserved_bytes)
    if not rank.outside_bytes:
        return
    device_bytes = rank.peak.reserved_bytes + rank.outside_bytes
    yield Figure(name="device", predicted=peak.device_bytes, measured=device_bytes)
    yield Figure(name="outside", predicted=statement.outside_allocator.total_bytes, measured=rank.outside_bytes)


def _notes(predicted: Predicted, measured: MeasuredProgram, rank: MeasuredRank) -> Iterator[str]:
    yield from differing_torch(predicted, rank.software.get("torch", ""))
    if isinstance(predicted, ProgramStatement) and not _is_called(rank.gpu, predicted.gpu):
        yield f"predicted for {predicted.gpu}, measured on {rank.gpu}"
    if measured.exit_code:
        yield f"the measured command ended with {measured.exit_code}: it may have ended before its peak"
    if rank.ended_by:
        yield f"the measured process was ended by {rank.ended_by}"
    if rank.processes > 1:
        yield f"{rank.processes} processes of this rank took memory: the figures are those of the largest"
    if rank.devices > 1:
        yield f"it took memory of {rank.devices} devices: the figures are those of the fullest"
    if rank.cache_releases:
        yield f"its cache was released {rank.cache_releases} times to make room, which lowers reserved bytes"
    if not rank.outside_bytes:
        yield "the driver did not say what the process held, so device bytes are not compared"


def _is_called(product: str, name: str) -> bool:
    """Whether the driver's name of a GPU is that of the catalog's."""
    try:
        return look_up(product).name == name
    except SpecError:
        return False

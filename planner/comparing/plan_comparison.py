"""A plan beside a measurement or a recorded snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.allocator.snapshot import Snapshot
from planner.allocator.verify import verify
from planner.comparing.comparison import Comparison, Figure, PhaseComparison
from planner.comparing.operations import compare_sizes
from planner.errors import PlannerError
from planner.events import Category, Event, Phase
from planner.layout.rank_sets import RankSet
from planner.measuring.event_phases import most_by_category, phases_of
from planner.measuring.measurement import Levels, MeasuredPhase, Measurement
from planner.report.program_statement import ProgramStatement
from planner.report.statement import Plan, RankClassStatement

Predicted = Plan | ProgramStatement
"""What has rank classes, and the versions with which they were made."""

_EXACT = (Category.PARAMETER, Category.GRADIENT, Category.BUCKET, Category.OPTIMIZER_STATE)


def with_measurement(
    plan: Plan, measurement: Measurement, *, events: Sequence[Event] = (), measured_events: Sequence[Event] = ()
) -> Comparison:
    """The rank class of the measured rank, beside the measurement.

    `events` are what was predicted for that class: with them categories are compared, and requested bytes, which is
    all that a CPU has; with `measured_events` allocations too. Raises PlannerError if no class has that rank.
    """
    statement = class_of(plan, measurement.rank)
    on_cpu = measurement.device.kind == "cpu"
    if on_cpu and not events:
        raise PlannerError(
            "this was measured on a CPU, which has requested bytes only",
            remedy="compare with the job itself, traced for a CPU, not with a finished plan",
        )
    predicted = phases_of(events)
    peak = _compare_requested(predicted, measurement.phases) if on_cpu else _whole(statement, measurement)
    phases = tuple(_phases_of_events(predicted, measurement) if on_cpu else _phases(statement, measurement))
    categories = _categories(events, measurement) if events else ()
    allocations, sizes = compare_sizes(events, measured_events) if measured_events else (None, ())
    return Comparison(
        case=measurement.case,
        device=measurement.device.name,
        peak=peak,
        phases=phases,
        categories=categories,
        allocations=allocations,
        sizes=sizes,
        notes=tuple(_notes(plan, measurement)),
    )


def with_snapshot(plan: Predicted, snapshot: Snapshot, name: str, *, rank: int = 0) -> Comparison:
    """The rank class of `rank` beside a recorded history: the peaks of the whole, of the device that held the most.

    Raises SnapshotError for a history that cannot be replayed, PlannerError if it is empty.
    """
    devices = verify(snapshot).devices
    if not devices:
        raise PlannerError(f"{name} has no history", remedy="record it with torch.cuda.memory._record_memory_history")
    recorded = max(devices, key=lambda each: each.peak_allocated_bytes)
    peak = class_of(plan, rank).peak
    figures = (
        Figure(name="allocated", predicted=peak.allocated_bytes, measured=recorded.peak_allocated_bytes),
        Figure(name="reserved", predicted=peak.reserved_bytes, measured=recorded.peak_reserved_bytes),
    )
    return Comparison(case=name, device=f"cuda:{recorded.device}", peak=figures)


def class_of(plan: Predicted, rank: int) -> RankClassStatement:
    """The class of a rank. Raises PlannerError if there is none."""
    for each in plan.rank_classes:
        if rank in RankSet.parse(each.ranks):
            return each
    raise PlannerError(f"the plan has no rank {rank}", allowed=", ".join(each.ranks for each in plan.rank_classes))


def _whole(statement: RankClassStatement, measurement: Measurement) -> tuple[Figure, ...]:
    peak, measured = statement.peak, measurement.peak
    figures = [
        Figure(name="allocated", predicted=peak.allocated_bytes, measured=measured.allocated_bytes),
        Figure(name="reserved", predicted=peak.reserved_bytes, measured=measured.reserved_bytes),
    ]
    device_bytes = max((each.device_bytes for each in measurement.phases), default=0)
    if device_bytes:
        figures.append(Figure(name="device", predicted=peak.device_bytes, measured=device_bytes))
    if device_bytes and measurement.device_bytes_by == "process":
        held = device_bytes - measured.reserved_bytes
        figures.append(Figure(name="outside", predicted=_outside(statement, measurement), measured=held))
    return tuple(figures)


def _outside(statement: RankClassStatement, measurement: Measurement) -> int:
    """With the images of the kernels that the step has loaded; absent peers have no NCCL."""
    outside = statement.outside_allocator
    return outside.total_bytes if measurement.peers == "present" else outside.cuda_context_bytes


def _phases(statement: RankClassStatement, measurement: Measurement) -> Iterator[PhaseComparison]:
    measured = {(each.phase, each.iteration): each for each in measurement.phases}
    for each in statement.phases:
        there = measured.get((each.phase, each.iteration))
        if there is None:
            continue
        yield PhaseComparison(
            phase=each.phase,
            iteration=each.iteration,
            figures=(
                Figure(name="allocated", predicted=each.peak_allocated_bytes, measured=there.peak.allocated_bytes),
                Figure(name="reserved", predicted=each.peak_reserved_bytes, measured=there.peak.reserved_bytes),
                Figure(name="allocated_at_end", predicted=each.end_allocated_bytes, measured=there.end.allocated_bytes),
            ),
        )


def _phases_of_events(predicted: Sequence[MeasuredPhase], measurement: Measurement) -> Iterator[PhaseComparison]:
    measured: dict[tuple[Phase, int], MeasuredPhase] = {(e.phase, e.iteration): e for e in measurement.phases}
    for each in predicted:
        there = measured.get((each.phase, each.iteration))
        if there is not None:
            figures = (
                _figure_of("requested", each.peak, there.peak),
                _figure_of("requested_at_end", each.end, there.end),
            )
            yield PhaseComparison(phase=each.phase, iteration=each.iteration, figures=figures)


def _compare_requested(predicted: Sequence[MeasuredPhase], measured: Sequence[MeasuredPhase]) -> tuple[Figure, ...]:
    highest, other = Levels(), Levels()
    for each in predicted:
        highest = highest.highest(each.peak)
    for each in measured:
        other = other.highest(each.peak)
    return (_figure_of("requested", highest, other),)


def _figure_of(name: str, predicted: Levels, measured: Levels) -> Figure:
    return Figure(name=name, predicted=predicted.requested_bytes, measured=measured.requested_bytes)


def _categories(events: Sequence[Event], measurement: Measurement) -> tuple[Figure, ...]:
    predicted = most_by_category(events)
    return tuple(
        Figure(name=each.value, predicted=predicted.get(each.value, 0), measured=measurement.categories[each.value])
        for each in _EXACT
        if each.value in measurement.categories
    )


def _notes(plan: Plan, measurement: Measurement) -> Iterator[str]:
    yield from differing_torch(plan, measurement.software.get("torch", ""))
    if measurement.truth is not None and not measurement.truth.believed:
        yield "the measurement cannot be believed: its runs disagree, or the profiler missed something"
    if measurement.out_of_memory is not None:
        out = measurement.out_of_memory
        yield f"the measured step ran out of memory in {out.phase} of iteration {out.iteration}"
    if measurement.peers == "absent":
        yield "measured with absent peers: NCCL's own memory is not in it"


def differing_torch(plan: Predicted, ran: str) -> Iterator[str]:
    """A note if the measurement ran with another minor version of torch."""
    planned = plan.provenance.torch
    if planned.split("+")[0].rsplit(".", 1)[0] != ran.split("+")[0].rsplit(".", 1)[0]:
        yield f"predicted with torch {planned}, measured with torch {ran}"

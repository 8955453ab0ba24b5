"""Compares a plan with a measurement or a snapshot, by phase and by allocation: values, the JSON
`planner.comparison/1`, and text, for `planner compare`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.allocator.snapshot import Snapshot, read_snapshot
from planner.allocator.verify import verify
from planner.errors import PlannerError, SpecError
from planner.events import Category, Event, Phase
from planner.job.json_text import file_text, read_json
from planner.job.named_gpus import look_up
from planner.job.rank_sets import RankSet
from planner.records import shape, to_plain
from planner.report.statement import (
    PLAN_SCHEMAS,
    Plan,
    RankClassStatement,
    from_json,
)
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import Measurement, most_by_category
from planner.units import show_bytes

SCHEMA = "planner.comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, twice."""

    name: str
    predicted: int
    measured: int = field(metadata=shape(then="error_percent"))

    @property
    def error_percent(self) -> float | None:
        """|predicted - measured| / measured * 100 (DNNMem, Gao et al. 2020); None if nothing was measured."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return round(abs(self.predicted - self.measured) / self.measured * 100, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseComparison:
    phase: Phase
    iteration: int
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measurement beside what was predicted for it."""

    case: str
    device: str
    peak: tuple[Figure, ...]
    phases: tuple[PhaseComparison, ...] = ()
    categories: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return render(self)


def to_json(comparison: Comparison) -> dict[str, Any]:
    return {"schema": SCHEMA, **to_plain(comparison)}


def render(comparison: Comparison) -> str:
    lines = [
        f"{comparison.case or 'job'}{f' on {comparison.device}' if comparison.device else ''}",
        f"{'':30} {'predicted':>14} {'measured':>14} {'error':>9}",
        *_rows(comparison.peak),
    ]
    for phase in comparison.phases:
        lines += [f"{phase.phase.value} {phase.iteration}", *_rows(phase.figures, indent="  ")]
    if comparison.categories:
        lines += ["by category", *_rows(comparison.categories, indent="  ")]
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join(lines) + "\n"


def _rows(figures: Iterable[Figure], *, indent: str = "") -> Iterator[str]:
    for figure in figures:
        error = "" if figure.error_percent is None else f"{figure.error_percent:.3f} %"
        name = indent + figure.name.replace("_", " ")
        yield f"{name:30} {show_bytes(figure.predicted):>14} {show_bytes(figure.measured):>14} {error:>9}"


_EXACT = tuple(
    category.value for category in (Category.PARAMETER, Category.GRADIENT, Category.BUCKET, Category.OPTIMIZER_STATE)
)


def with_measurement(plan: Plan, measurement: Measurement, *, events: Sequence[Event] = ()) -> Comparison:
    """The rank class of the measured rank, beside the measurement.

    `events` are what was predicted for that class: with them categories are compared, which is all that a run on a CPU
    has in common with a plan. Raises PlannerError if no class has that rank.
    """
    name = measurement.case or (f"rank {measurement.rank}" if measurement.command else "")
    if measurement.error:
        return Comparison(case=name, device="", peak=(), notes=(f"no figures: {measurement.error}",))
    statement = class_of(plan, measurement.rank)
    if measurement.device.kind != "cpu":
        peak, phases = _whole(statement, measurement), tuple(_phases(statement, measurement))
    elif events:
        peak, phases = (), ()
    else:
        raise PlannerError(
            "this was measured on a CPU, where only parameters, gradients, buckets and optimizer state are as on a GPU",
            remedy="compare with the job itself, of which each tensor is known, not with a finished plan",
        )
    most = most_by_category(events)
    return Comparison(
        case=name,
        device=measurement.device.name,
        peak=peak,
        phases=phases,
        categories=tuple(
            Figure(name=category, predicted=most.get(category, 0), measured=measurement.categories[category])
            for category in _EXACT
            if events and category in measurement.categories
        ),
        notes=tuple(_notes(plan, measurement)),
    )


def with_snapshot(plan: Plan, snapshot: Snapshot, name: str, *, rank: int = 0) -> Comparison:
    """The rank class of `rank` beside a recorded history: the peaks of the whole, of the device that held the most.

    Raises SnapshotError for a history that cannot be replayed, PlannerError if it is empty.
    """
    devices = verify(snapshot).devices
    if not devices:
        raise PlannerError(f"{name} has no history", remedy="record it with torch.cuda.memory._record_memory_history")
    recorded = max(devices, key=lambda report: report.peak_allocated_bytes)
    measured = recorded.peak_allocated_bytes, recorded.peak_reserved_bytes
    return Comparison(
        case=name, device=f"cuda:{recorded.device}", peak=_allocated_and_reserved(class_of(plan, rank), *measured)
    )


def class_of(plan: Plan, rank: int) -> RankClassStatement:
    """The class of a rank. Raises PlannerError if there is none."""
    for ranks in plan.rank_classes:
        if rank in RankSet.parse(ranks.ranks):
            return ranks
    allowed = ", ".join(ranks.ranks for ranks in plan.rank_classes)
    raise PlannerError(f"the plan has no rank {rank}", allowed=allowed)


def _allocated_and_reserved(
    statement: RankClassStatement, allocated_bytes: int, reserved_bytes: int
) -> tuple[Figure, ...]:
    peak = statement.peak
    return (
        Figure(name="allocated", predicted=peak.allocated_bytes, measured=allocated_bytes),
        Figure(name="reserved", predicted=peak.reserved_bytes, measured=reserved_bytes),
    )


def _whole(statement: RankClassStatement, measurement: Measurement) -> tuple[Figure, ...]:
    reserved, outside = measurement.peak.reserved_bytes, measurement.outside_bytes
    figures = [*_allocated_and_reserved(statement, measurement.peak.allocated_bytes, reserved)]
    if outside:
        # The highest reserved and what was outside at the end of a phase: the driver keeps no peak of a process.
        figures.append(Figure(name="device", predicted=statement.peak.device_bytes, measured=reserved + outside))
    if outside and measurement.device_bytes_by == "process":
        # With the images of the kernels that the step has loaded; absent peers have no NCCL.
        of_plan = statement.outside_allocator
        has_nccl = measurement.command or measurement.peers == "present"
        predicted = of_plan.total_bytes if has_nccl else of_plan.cuda_context_bytes
        figures.append(Figure(name="outside", predicted=predicted, measured=outside))
    return tuple(figures)


def _phases(statement: RankClassStatement, measurement: Measurement) -> Iterator[PhaseComparison]:
    measured = {(phase.phase, phase.iteration): phase for phase in measurement.phases}
    if len(measured) == 1:  # of a program that names no phase
        return
    for phase in statement.phases:
        if there := measured.get((phase.phase, phase.iteration)):
            figures = (
                Figure(name="allocated", predicted=phase.peak_allocated_bytes, measured=there.peak.allocated_bytes),
                Figure(name="reserved", predicted=phase.peak_reserved_bytes, measured=there.peak.reserved_bytes),
                Figure(
                    name="allocated_at_end", predicted=phase.end_allocated_bytes, measured=there.end.allocated_bytes
                ),
            )
            yield PhaseComparison(phase=phase.phase, iteration=phase.iteration, figures=figures)


def _notes(plan: Plan, measurement: Measurement) -> Iterator[str]:
    yield from _differing_torch(plan, measurement.software.get("torch", ""))
    if plan.command and measurement.device.kind != "cpu" and not _is_called(measurement.device.name, plan.gpu):
        yield f"predicted for {plan.gpu}, measured on {measurement.device.name}"
    if measurement.truth is not None and not measurement.truth.believed:
        yield "the measurement cannot be believed: its runs disagree, or the profiler missed something"
    if measurement.exit_code:
        yield f"the measured command ended with {measurement.exit_code}: it may have ended before its peak"
    if measurement.out_of_memory is not None:
        out = measurement.out_of_memory
        yield f"the measured step ran out of memory in {out.phase} of iteration {out.iteration}"
    elif measurement.ended_by:
        yield f"the measured process was ended by {measurement.ended_by}"
    if measurement.peers == "absent":
        yield "measured with absent peers: NCCL's own memory is not in it"
    if measurement.processes > 1:
        yield f"{measurement.processes} processes of this rank took memory: the figures are those of the largest"
    if measurement.devices > 1:
        yield f"it took memory of {measurement.devices} devices: the figures are those of the fullest"
    if releases := measurement.memory_stats.get("num_alloc_retries"):
        yield f"its cache was released {releases} times to make room, which lowers reserved bytes"
    if measurement.device.kind == "cuda" and not measurement.outside_bytes:
        yield "the driver did not say what the process held, so device bytes are not compared"


def _differing_torch(plan: Plan, ran: str) -> Iterator[str]:
    """A note if the measurement ran with another minor version of torch."""
    planned = plan.provenance.torch
    if planned.split("+")[0].rsplit(".", 1)[0] != ran.split("+")[0].rsplit(".", 1)[0]:
        yield f"predicted with torch {planned}, measured with torch {ran}"


def _is_called(product: str, name: str) -> bool:
    """Whether the driver's name of a GPU is that of the catalog's."""
    try:
        return look_up(product).name == name
    except SpecError:
        return False


_SNAPSHOTS = (".pickle", ".pkl", ".gz", ".xz")


def no_events(_: int) -> Sequence[Event]:
    """What a finished plan knows of the events of a rank."""
    return ()


def run_compare(
    plan: Plan,
    measured: Path,
    *,
    case: str = "",
    rank: int | None = None,
    events_of: Callable[[int], Sequence[Event]] = no_events,
) -> list[Comparison]:
    """The plan beside a snapshot, or every measurement of a file that is of `case` and `rank` (default: all).

    `events_of` gives the predicted events of a measured rank. Raises PlannerError for a file that is neither, or
    without such a measurement.
    """
    if measured.name.endswith(_SNAPSHOTS):
        return [with_snapshot(plan, read_snapshot(measured), measured.name, rank=rank or 0)]
    measurements = [
        one
        for one in measurement_lines.read(measured)
        if (not case or one.case == case)
        and (rank is None or one.rank == rank)
        and (one.command or (one.job and not one.error))
    ]
    if all(one.error for one in measurements):
        wanted = f"no measurement of {case!r}" if case else "no measurement of a rank"
        reasons = "; ".join(f"rank {one.rank}: {one.error}" for one in measurements)
        raise PlannerError(
            f"{measured} has {wanted}{f' ({reasons})' if reasons else ''}",
            allowed="a file that planner measure wrote of a job, or of a program that used a GPU, or a snapshot",
            remedy="measure it again where it comes to its end" if measurements else "--rank of one that was measured",
        )
    return [with_measurement(plan, one, events=events_of(one.rank)) for one in measurements]


def is_of_cpu(measured: Path) -> bool:
    """Whether all of a file was measured on CPUs."""
    if measured.name.endswith(_SNAPSHOTS):
        return False
    return {one.device.kind for one in measurement_lines.read(measured) if not one.error} == {"cpu"}


def format_comparisons(comparisons: Sequence[Comparison], *, as_json: bool) -> str:
    """The comparisons as they are printed; as JSON one object: the comparison, or all of them."""
    if not as_json:
        return "\n".join(map(render, comparisons))
    documents = [to_json(comparison) for comparison in comparisons]
    whole = documents[0] if len(documents) == 1 else {"schema": "planner.comparisons/1", "comparisons": documents}
    return json.dumps(whole, indent=2) + "\n"


def read_stored_plan(path: Path) -> Plan | None:
    """What `planner plan` or `planner run --format json` wrote; None for any other file, which its own reader judges.

    Raises PlannerError for a plan that lacks something.
    """
    document = _read_object(path)
    return from_json(document) if document.get("schema") in PLAN_SCHEMAS else None


def _read_object(path: Path) -> Mapping[str, Any]:
    """Empty for any file that is not a JSON object: its own reader tells what is broken."""
    try:
        document = read_json(file_text(path, str(path)), str(path))
    except SpecError:
        return {}
    return document if isinstance(document, dict) else {}

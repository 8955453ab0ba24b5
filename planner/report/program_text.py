"""A program's run for a terminal: the report of a plan, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.report.plan_text import (
    join_lines,
    judgement_lines,
    provenance_lines,
    ranks_of,
    sentence_lines,
    title_lines,
)
from planner.report.program_statement import AssumptionStatement, ProgramStatement
from planner.report.style import Style, size

_MOST_SHOWN = 12


def render(found: ProgramStatement, style: Style, *, largest: int = 8, every_assumption: bool = False) -> str:
    """The whole report; of assumptions on values the most frequent, unless every one is wanted."""
    gpus = found.nodes * found.gpus_per_node
    layout = found.gpu if gpus == 1 else f"{gpus} {style.times} {found.gpu}"
    parts = [layout + (f" on {found.nodes} nodes" if found.nodes > 1 else ""), _ended(found)]
    if found.allocator_conf:
        parts.append(found.allocator_conf)
    shown = found.assumptions if every_assumption else _most_frequent(found.assumptions)
    return join_lines([
        *title_lines(" ".join(found.command), parts, style),
        *judgement_lines(found, style, largest, host_asked_by="--host-memory"),
        *sentence_lines([*_steps_at(found)], style),
        *(line for sentence in found.out_of_memory for line in sentence_lines([sentence], style)),
        "",
        *_assumptions(found, shown, style),
        *_branches(found, style),
        "",
        *provenance_lines(found, found.notes, style),
    ])  # fmt: skip


def _ended(found: ProgramStatement) -> str:
    repeated = [f"{found.repeated} of these repeat others"] if found.repeated else []
    return "; ".join([found.ending, *repeated, *found.unseen])


def _steps_at(found: ProgramStatement) -> Iterator[str]:
    if found.steps_at:
        fullest = ranks_of(found.rank_classes[0])
        hold = "hold" if fullest.startswith("ranks") else "holds"
        yield f"Where its loop was made to count to these steps, {fullest} {hold} at most:"
    for each in found.steps_at:
        yield f"- step {each.step:,}: {size(each.allocated_bytes)} allocated, {size(each.reserved_bytes)} reserved"


def _most_frequent(assumptions: Sequence[AssumptionStatement]) -> list[AssumptionStatement]:
    values = sorted((each for each in assumptions if each.about == "value"), key=lambda each: -each.count)
    kept = {id(each) for each in values[:_MOST_SHOWN]}
    return [each for each in assumptions if each.about != "value" or id(each) in kept]


def _assumptions(found: ProgramStatement, shown: Sequence[AssumptionStatement], style: Style) -> Iterator[str]:
    yield style.paint("What this rests on, besides the program", "bold")
    for each in shown:
        where = f"{each.place}: " if each.place else ""
        times = f", {each.count} times" if each.count > 1 else ""
        yield from sentence_lines([f"- {where}{each.text}{times}"], style)
    left = len(found.assumptions) - len(shown)
    if left:
        yield style.paint(f"  and {left} more reads of values (--format json has them all)", "dim")


def _branches(found: ProgramStatement, style: Style) -> Iterator[str]:
    for each in found.branches:
        said = f"- {each.place}: {each.taken} decided which way the program goes; with {not each.taken} {each.outcome}"
        if each.other_allocated_bytes:
            said += (
                f": {size(each.other_allocated_bytes)} allocated and {size(each.other_reserved_bytes)} reserved at its "
                f"peak, where it was {size(each.allocated_bytes)} and {size(each.reserved_bytes)}"
            )
        yield from sentence_lines([said], style)

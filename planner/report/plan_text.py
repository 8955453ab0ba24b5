"""The report of a plan or of a program's run for a terminal: rank classes, holders, hosts, the verdict, its grounds."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from planner.allocator.host.statement import HostStatement
from planner.events import Category
from planner.host_events import HostCategory
from planner.report.statement import (
    FirstRuns,
    Holder,
    HostLead,
    PhaseStatement,
    Plan,
    RankClassStatement,
    StepTime,
    TrainedAdapter,
    Verdict,
    change_text,
    ranks_text,
)
from planner.report.style import Style, join_lines, sentence_lines, shorten_to, size, wrap, wrap_parts
from planner.report.verdict_text import (
    advice_heading,
    confidence_sentence,
    deciding,
    describe,
    frees_its_cache,
    is_smallest,
    moment_of,
    nodes_of,
    smallest_change,
    verdict_sentences,
)
from planner.units import GIB

_LABEL, _SIZE = 26, 12
_MOST_ITERATIONS, _FIRST, _LAST = 12, 4, 2
"""Rows of the phases: of more iterations only some are shown."""
_SHOWN_SHARE = 0.0005
"""A category that would be shown as 0.0 % is left out."""
_MOST_ASSUMPTIONS = 12
"""On values, of a program."""
_VERDICT_COLORS = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.EXCEEDS: "red"}


def render(
    statement: Plan,
    style: Style,
    *,
    verbose: bool = True,
) -> str:
    """The whole report, the verdict first. Only a `verbose` one says where figures come from, and of all rank classes
    what it says of the one that decides."""
    if statement.command:
        name, parts = " ".join(statement.command), _describe_run(statement, style)
        grounds = [*_program_lines(statement, style)]
    else:
        name, parts, grounds = statement.name, describe(statement.job, style), []
        if (adapter := statement.adapter) is not None:
            parts.append(adapter_sentence(adapter))
    grounds += _advice(statement, style) if statement.job else ()
    asked_by = "cluster.host_memory" if statement.job else "--host-memory"
    lines = [*_verdict(statement, style), ""]
    shown = (style.paint(line, "dim") for line in wrap_parts(parts, style))
    lines += [style.paint(name, "bold"), *sentence_lines(statement.planned, style), *shown, ""]
    decides = deciding(statement)
    for rank_class in statement.rank_classes if verbose else (decides,):
        lines += [*_rank_class(rank_class, statement, style), ""]
    if not verbose and len(statement.rank_classes) > 1:
        lines += [*_other_ranks([each for each in statement.rank_classes if each is not decides], style), ""]
    if statement.host is not None:
        lines += _host(statement.host, style, asked_by)
    if statement.step is not None:
        lines += [*wrap(step_sentence(statement.step), style.width)]
    if (first := decides.first_runs) is not None:
        lines += [*wrap(first_runs_sentence(first), style.width)]
    if (lead := decides.host_lead) is not None:
        lines += [*wrap(host_lead_sentence(lead, decides.peak.reserved_bytes), style.width)]
    notes = [*statement.notes, *(statement.sources if verbose else ())]
    provenance = (style.paint(line, "dim") for line in _provenance(statement, notes, style))
    parts = [*lines, *grounds]
    return join_lines([*parts, *([""] if parts[-1] else []), *provenance])


def _verdict(statement: Plan, style: Style) -> Iterator[str]:
    """Whether it fits, the smallest change if not, and how sure that is."""
    color = _VERDICT_COLORS[statement.verdict]
    yield from (style.paint(line, color) for line in sentence_lines(verdict_sentences(statement), style))
    if (change := smallest_change(statement.advice)) is not None:
        arrow = "→" if style.unicode else "->"
        head = "Smallest change" if is_smallest(statement) else "A change that fits, perhaps not the smallest"
        if frees_its_cache(statement):
            head = "Without freeing the cache"
        yield from wrap(f"{head}: {change_text(change.change)} {arrow} {size(change.device_bytes)}.", style.width)
    yield from wrap(confidence_sentence(statement), style.width)


def adapter_sentence(adapter: TrainedAdapter) -> str:
    """`lora of rank 16 beside q_proj, v_proj: 3,407,872 parameters trained`."""
    modules = ", ".join(adapter.modules)
    return f"{adapter.kind} of rank {adapter.rank} beside {modules}: {adapter.parameters:,} parameters trained"


def step_sentence(step: StepTime) -> str:
    """How long a step takes, how sure that is, and what of it is whose."""
    low, high = step.interval_seconds
    rate = f": {step.tokens_per_second:,.0f} tokens a second on each GPU" if step.tokens_per_second else ""
    parts = {"kernels": step.computing_seconds, "collectives": step.communicating_seconds,
             "launches": step.launching_seconds}  # fmt: skip
    said = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in parts.items() if seconds)
    return f"A step takes about {_seconds(step.seconds)} ({_seconds(low)} to {_seconds(high)}){rate} ({said})."


def first_runs_sentence(first: FirstRuns) -> str:
    empty, filled = size(first.empty_cache_bytes), size(first.filled_cache_bytes)
    if empty == filled:
        return f"With Inductor's cache empty (a new container) or filled {filled} are reserved."
    return f"With Inductor's cache empty (a new container) {empty} are reserved, with a filled one {filled}."


def host_lead_sentence(lead: HostLead, reserved_bytes: int) -> str:
    """What is reserved because the host is ahead of the GPU, and between what it lies."""
    low, high = lead.host_interval_bytes
    between = "" if low == high else f"; hosts of half and twice the speed make it {size(low)} to {size(high)}"
    less = size(max(reserved_bytes - lead.least_bytes, 0))
    return (
        f"The host is ahead of the GPU by up to {_seconds(lead.seconds)}, and memory that the GPU has not passed is not"
        f" free: if it were never ahead, {less} less would be reserved{between}."
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _rank_class(statement: RankClassStatement, whole: Plan, style: Style) -> Iterator[str]:
    title = ranks_text(statement.ranks)
    if len(whole.rank_classes) > 1:
        where = ", ".join(f"{axis} {at}" for axis, at in statement.coordinates.items())
        like = f", like rank {statement.representative}" if statement.ranks != str(statement.representative) else ""
        title += like + (f" ({where})" if where else "")
    yield style.paint(title, "bold")
    yield from _device(statement, style, calibrated=whole.calibrated)
    yield ""
    yield from _phases(statement, style)
    yield from _moments(statement, style)
    yield ""
    yield from _categories(statement, style)
    yield ""
    yield from _holders(statement.holders, style)


def _other_ranks(rank_classes: Sequence[RankClassStatement], style: Style) -> Iterator[str]:
    """A line for each."""
    labels = [
        ranks_text(each.ranks) + (f", {each.verdict.value}" if each.verdict is not Verdict.FITS else "")
        for each in rank_classes
    ]
    room = style.width - 2 - 3 * _SIZE
    rows = [
        (shorten_to(label, room, style), (each.peak.allocated_bytes, each.peak.reserved_bytes, each.peak.device_bytes))
        for label, each in zip(labels, rank_classes, strict=True)
    ]
    head, *lines = _table(_LABEL, ("other ranks (--verbose)", "allocated", "reserved", "device"), rows)
    yield style.paint(head, "dim")
    yield from lines


def _table(width: int, head: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """The heads and a line a row: a label, and sizes right-aligned from `width` on or where the longest label leaves
    room."""
    cells = [(head[0], list(head[1:])), *((label, [size(count) for count in counts]) for label, counts in rows)]
    first = max(width + _SIZE, *(len(label) + 1 + len(sizes[0]) for label, sizes in cells))
    return [
        f"  {label}{sizes[0]:>{first - len(label)}}" + "".join(f"{text:>{_SIZE}}" for text in sizes[1:])
        for label, sizes in cells
    ]


def _phases(statement: RankClassStatement, style: Style) -> Iterator[str]:
    arrow = " ◂ peak" if style.unicode else "<- peak"
    iterations: dict[int, list[PhaseStatement]] = {}
    for phase in statement.phases:
        iterations.setdefault(phase.iteration, []).append(phase)
    repeated = _repeated(iterations)
    left_out = _left_out([number for number in iterations if number not in repeated], statement.peak.iteration)
    shown = [phase for number in left_out for phase in iterations[number]]
    indent = max(13, *(len(f"iteration {phase.iteration} ") for phase in shown))
    rows = []
    for phase in shown:
        first = phase.iteration > 0 and phase is iterations[phase.iteration][0]
        head = f"iteration {phase.iteration}" if first else ""
        name = phase.phase.value.replace("_", " ")
        label = f"{head:<{indent}}{name}" if phase.iteration > 0 else name
        rows.append((label, (phase.peak_allocated_bytes, phase.peak_reserved_bytes, phase.end_allocated_bytes)))
    heads, *lines = _table(_LABEL, ("phase", "allocated", "reserved", "at its end"), rows)
    yield style.paint(heads, "dim")
    for phase, line in zip(shown, lines, strict=True):
        same = iterations[phase.iteration]
        if phase is same[0] and (left := left_out[phase.iteration]):
            yield style.paint(f"  {'':<{indent}}{left} iterations between", "dim")
        peak = (phase.phase, phase.iteration) == (statement.peak.phase, statement.peak.iteration)
        yield style.paint(f"{line} {arrow}", "bold") if peak else line
        if phase is same[-1] and phase.iteration in repeated.values():
            last = max(number for number, like in repeated.items() if like == phase.iteration)
            yield style.paint(f"  {'':<{indent}}and so until iteration {last}", "dim")


def _repeated(iterations: Mapping[int, Sequence[PhaseStatement]]) -> dict[int, int]:
    """Iterations that are like the one before them, with the first of those."""
    alike: dict[int, int] = {}
    first, before = 0, None
    for number, phases in iterations.items():
        sizes = [(phase.phase, phase.peak_allocated_bytes, phase.end_allocated_bytes) for phase in phases]
        most_reserved = max(phase.peak_reserved_bytes for phase in phases)
        if (sizes, most_reserved) == before:
            alike[number] = first
        else:
            first, before = number, (sizes, most_reserved)
    return alike


def _left_out(iterations: Sequence[int], peak: int) -> dict[int, int]:
    """Of many iterations the first, the last and the one of the peak, each with how many are left out before it."""
    kept = {*iterations[:_FIRST], *iterations[-_LAST:], peak} if len(iterations) > _MOST_ITERATIONS else {*iterations}
    places = [place for place, number in enumerate(iterations) if number in kept]
    return {iterations[place]: place - before - 1 for before, place in pairwise([-1, *places])}


def _moments(statement: RankClassStatement, style: Style) -> Iterator[str]:
    moments = statement.moments
    if not moments:
        return
    names = max(_LABEL - 2, *(len(moment.name) for moment in moments))
    rows = [
        (
            f"{moment.name:<{names}}  {moment.phase.value.replace('_', ' ')}, step {moment.iteration}",
            (moment.allocated_bytes, moment.reserved_bytes, moment.device_bytes),
        )
        for moment in moments
    ]
    heads, *lines = _table(2 * _LABEL, ("moments when jobs die", "allocated", "reserved", "device"), rows)
    yield ""
    yield style.paint(heads, "dim")
    for moment, line in zip(moments, lines, strict=True):
        yield line
        yield from (style.paint(f"    {text}", "dim") for text in wrap(moment.sentence, style.width - 4))


def _categories(statement: RankClassStatement, style: Style) -> Iterator[str]:
    peak = statement.peak
    yield f"  at the peak, {moment_of(peak.phase, peak.iteration)}: {size(peak.allocated_bytes)}"
    width = style.width - 2 - 18 - _SIZE - 7 - 2
    largest = max(statement.at_peak.values(), default=0)
    for category in Category:
        count = statement.at_peak.get(category, 0)
        if count >= peak.allocated_bytes * _SHOWN_SHARE and count:
            bar = style.paint(style.bar(count / largest, width), category.value)
            name = category.value.replace("_", " ")
            yield f"  {name:<18}{size(count):>{_SIZE}}{count / peak.allocated_bytes:>6.1%}   {bar}"


def _holders(holders: Sequence[Holder], style: Style, largest: int = 8) -> Iterator[str]:
    alike = _alike(holders)
    if not alike:
        return
    shown = alike[:largest]
    where = [holder.module or holder.op or "(no module)" for holder in shown]
    names = min(max(map(len, where)), max(style.width - 70, 20))
    head = f"  {'size':>{_SIZE - 1}}  {'largest holders':<16}{'module or operator':<{names}}  blocks, dtype, operator"
    yield style.paint(shorten_to(head, style.width, style), "dim")
    for holder, place in zip(shown, where, strict=True):
        pieces = f" {style.times} ".join(map(str, holder.shape)) or ("scalar" if holder.dtype else "")
        if len(holder.shape) == 1:  # flat: its size says more than its length
            pieces = size(holder.bytes // holder.count)
        if holder.count > 1:
            pieces = f"{holder.count} of {pieces}" if pieces else f"{holder.count} blocks"
        # The operator, where it says something that category and module do not.
        named = (Category.ACTIVATION, Category.TEMPORARY, Category.COMMUNICATION, Category.OTHER)
        maker = holder.op if holder.category in named and holder.module else ""
        what = "  ".join(part for part in (pieces, holder.dtype, maker) if part)
        name = shorten_to(place, names, style)
        category = holder.category.value.replace("_", " ")
        row = f"  {size(holder.bytes):>{_SIZE - 1}}  {category:<16}{name:<{names}}  {what}"
        yield shorten_to(row, style.width, style)
    if rest := alike[largest:]:
        left = size(sum(holder.bytes for holder in rest))
        yield style.paint(f"  {left:>{_SIZE - 1}}  in {len(rest)} smaller groups", "dim")


def _alike(holders: Sequence[Holder]) -> list[Holder]:
    """Holders that differ only in the numbers of their modules (`layers.3.mlp`, `layers.4.mlp`) taken together."""
    merged: dict[tuple[Any, ...], list[Holder]] = {}
    for holder in holders:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", holder.module)
        merged.setdefault((holder.category, pattern, holder.op, holder.shape, holder.dtype), []).append(holder)
    together = [
        replace(
            group[0],
            bytes=sum(holder.bytes for holder in group),
            module=pattern if len(group) > 1 else group[0].module,
            count=sum(holder.count for holder in group),
        )
        for (_, pattern, *_), group in merged.items()
    ]
    return sorted(together, key=lambda holder: -holder.bytes)


def _device(statement: RankClassStatement, style: Style, *, calibrated: bool) -> Iterator[str]:
    peak, outside, headroom = statement.peak, statement.outside_allocator, statement.headroom_bytes
    cached = peak.reserved_bytes - peak.allocated_bytes
    marks, plain_marks = ("█", "▓", "▒", "·"), ("#", "=", "+", ".")
    sizes = (peak.allocated_bytes, cached, outside.total_bytes, max(headroom, 0))
    parts = list(zip(marks, plain_marks, sizes, strict=True))
    allocated_mark, cached_mark, outside_mark, free_mark = marks if style.unicode else plain_marks
    width = style.width - 4

    def row(mark: str, label: str, count: int, more: str = "") -> str:
        return f"  {mark:<1} {label:<{_LABEL}}{size(count):>{_SIZE}}{more}"

    yield "  on the device"
    yield f"  {style.stack(parts, width)}"
    if headroom < 0:
        end = statement.capacity_bytes * width // peak.device_bytes
        yield style.paint(f"  {'':{end}}{'▲' if style.unicode else '^'} capacity", "red")
    yield row(allocated_mark, "allocated at the peak", peak.allocated_bytes)
    yield row(cached_mark, "cached by the allocator", cached)
    yield row(outside_mark, "CUDA context", outside.cuda_context_bytes)
    if outside.nccl_bytes:
        yield row(outside_mark, "NCCL", outside.nccl_bytes)
    yield style.paint(row("", "device", peak.device_bytes), "bold")
    low, high = peak.interval_bytes
    yield row("", "  95 % interval" if calibrated else "  uncalibrated interval", low, f" to {size(high)}")
    yield row("", "capacity", statement.capacity_bytes)
    if headroom < 0:
        yield style.paint(row("", "over capacity", -headroom), "red")
    else:
        yield style.paint(row(free_mark, "headroom", headroom), "green")


_HOST_NAMES = {
    HostCategory.BATCH: "batches read ahead",
    HostCategory.PINNED_CACHE: "pinned and kept",
}


def _host(host: HostStatement, style: Style, asked_by: str) -> Iterator[str]:
    """Every kind of node: what it holds at least at its highest point, and what there is; in short where nothing is
    judged. `asked_by`: where somebody may say what a node has."""

    def row(label: str, count: int, more: str = "") -> str:
        return f"  {label:<{_LABEL}}{size(count):>{_SIZE}}{more}"

    for node in host.nodes:
        peak = node.peak
        if host.verdict is None:
            if peak.bytes < GIB:  # nodes have hundreds
                continue
            yield f"host of {nodes_of(node)}: at least {size(peak.bytes)} of main memory"
            yield style.paint(f"  not checked: set {asked_by}", "dim")
            yield ""
            continue
        yield style.paint(f"host of {nodes_of(node)}", "bold")
        yield f"  at the peak, {moment_of(peak.phase, peak.iteration)}: at least {size(peak.bytes)}"
        for category in HostCategory:
            if count := node.parts.get(category, 0):
                name = _HOST_NAMES.get(category, category.value.replace("_", " "))
                yield row(name, count, f"{count / peak.bytes:>7.1%}")
        yield row("capacity", host.capacity_bytes)
        if (over := peak.bytes - host.capacity_bytes) > 0:
            yield style.paint(row("over capacity", over), "red")
        yield ""


def _advice(plan: Plan, style: Style) -> Iterator[str]:
    indent = 2 + _SIZE + 9
    if len(plan.advice) > 1:
        yield ""
        yield style.paint(advice_heading(plan), "bold")
    for entry in plan.advice if len(plan.advice) > 1 else ():
        verdict = style.paint(f"{entry.verdict.value:<7}", _VERDICT_COLORS[entry.verdict])
        first, *more = textwrap.wrap(change_text(entry.change), style.width - indent - 2)
        yield f"  {size(entry.device_bytes):>{_SIZE - 1}}  {verdict} {first}"
        yield from (f"{'':{indent}}  {line}" for line in more)
    if plan.fitting_spec:
        yield ""
        yield f"The job with {change_text(plan.advice[0].change)}, as a spec:"
        yield from (f"  {line}" for line in plan.fitting_spec.splitlines())


def _provenance(statement: Plan, notes: Sequence[str], style: Style) -> Iterator[str]:
    made, seconds = statement.provenance, statement.seconds
    took = f"traced in {seconds.trace:.1f} s, replayed in {seconds.replay:.1f} s, {seconds.total:.1f} s in all"
    parts = [
        f"planner {made.planner}",
        f"torch {made.torch}",
        f"allocator rules {made.allocator_rules}",
        f"GPU catalog {made.catalog}",
        f"calibration {made.calibration}" if statement.calibrated else "uncalibrated",
        took,
    ]
    yield from sentence_lines(notes, style)
    yield from wrap_parts(parts, style)


def _describe_run(run: Plan, style: Style) -> list[str]:
    gpus = run.nodes * run.gpus_per_node
    layout = run.gpu if gpus == 1 else f"{gpus} {style.times} {run.gpu}"
    nodes = f" on {run.nodes} nodes" if run.nodes > 1 else ""
    repeated = [f"{run.repeated} of these repeat others"] if run.repeated else []
    ended = "; ".join([run.ending, *repeated, *run.unseen])
    return [layout + nodes, ended, *([run.allocator_conf] if run.allocator_conf else [])]


def _program_lines(run: Plan, style: Style) -> Iterator[str]:
    """Steps that were asked for, where memory runs out, and what the run rests on: of assumptions on values the most
    frequent."""
    if run.steps_at:
        ranks = ranks_text(run.rank_classes[0].ranks)
        hold = "hold" if ranks.startswith("ranks") else "holds"
        steps = [
            f"- step {at.step:,}: {size(at.allocated_bytes)} allocated, {size(at.reserved_bytes)} reserved"
            for at in run.steps_at
        ]
        head = f"Where its loop was made to count to these steps, {ranks} {hold} at most:"
        yield from sentence_lines([head, *steps], style)
    yield from sentence_lines(run.out_of_memory, style)
    yield ""
    yield style.paint("What this rests on, besides the program", "bold")
    values = sorted((entry for entry in run.assumptions if entry.about == "value"), key=lambda entry: -entry.count)
    left = {id(entry) for entry in values[_MOST_ASSUMPTIONS:]}
    for entry in run.assumptions:
        if id(entry) not in left:
            where = f"{entry.place}: " if entry.place else ""
            times = f", {entry.count} times" if entry.count > 1 else ""
            yield from sentence_lines([f"- {where}{entry.text}{times}"], style)
    if left:
        yield style.paint(f"  and {len(left)} more reads of values (--format json has them all)", "dim")
    for branch in run.branches:
        line = f"- {branch.place}: {branch.taken} decided which way the program goes; with {not branch.taken} "
        line += branch.outcome
        if branch.other_allocated_bytes:
            line += (
                f": {size(branch.other_allocated_bytes)} allocated and {size(branch.other_reserved_bytes)} reserved at"
                f" its peak, where it was {size(branch.allocated_bytes)} and {size(branch.reserved_bytes)}"
            )
        yield from sentence_lines([line], style)

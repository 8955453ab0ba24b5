"""The plan for a terminal: the verdict, rank classes, holders, a shared GPU, the nodes' hosts, and advice."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from planner.allocator.host.statement import HostStatement, NodeStatement
from planner.events import Category, Phase
from planner.host_events import HostCategory
from planner.job.bound.lower_bound import Bound
from planner.report.shared_gpu import SharedGpu, SharedPhase
from planner.report.statement import (
    Advice,
    Holder,
    Judged,
    PhaseStatement,
    Plan,
    RankClassStatement,
    Verdict,
    change_text,
    ranks_text,
    worst_verdict,
)
from planner.report.style import Style, size
from planner.report.title import describe, gpu_of, name_of
from planner.units import MIB

_SHARED_LABEL, _SHARED_SIZE = 19, 11
_HEADS = ("trainer", "weights", "KV cache", "the rest", "together")


def shared_lines(statement: RankClassStatement, shared: SharedGpu, style: Style) -> Iterator[str]:
    """The table of phases, and what it comes to."""
    yield "  on the device: the trainer's process, the engine's weights, its KV cache, the rest of the engine"
    yield from table_lines(shared, statement.capacity_bytes, style)
    low, high = statement.peak.interval_bytes
    yield f"    {'fullest, interval':<26}{size(low):>12} to {size(high)}"
    yield f"    {'capacity':<26}{size(statement.capacity_bytes):>12}"
    yield from (f"  {sentence}" for sentence in share_sentences(shared))


def table_lines(shared: SharedGpu, capacity_bytes: int, style: Style) -> Iterator[str]:
    """A row for each phase, the fullest of them marked."""
    frozen = any(row.reference_bytes + row.reward_bytes >= MIB for row in shared.phases)
    heads = [_HEADS[0], *(["frozen"] if frozen else []), *_HEADS[1:]]
    yield style.paint(f"  {'phase':<{_SHARED_LABEL}}{''.join(f'{head:>{_SHARED_SIZE}}' for head in heads)}", "dim")
    fullest = shared.fullest()
    for row in shared.phases:
        line = f"  {row.phase.value.replace('_', ' '):<{_SHARED_LABEL}}"
        line += "".join(f"{size(count) if count else '':>{_SHARED_SIZE}}" for count in _columns(row, frozen=frozen))
        over = row.total_bytes > capacity_bytes
        arrow = (" ◂" if style.unicode else " <-") if row is fullest else ""
        painted = style.paint(f"{line}{arrow}", "bold") if row is fullest else line
        yield style.paint(f"{line}{arrow}", "red") if over else painted


def share_sentences(shared: SharedGpu) -> Iterator[str]:
    """The engine's share, its cache, and the largest shares."""
    found = " (found by planner)" if shared.solved else ""
    blocks = f"{shared.kv_blocks:,} blocks of {size(shared.kv_block_bytes)}"
    yield f"gpu_memory_utilization {shared.utilization:.2f}{found}: {blocks}, {shared.kv_tokens:,} tokens"
    if not shared.largest_utilization:
        yield "no share goes: it exceeds with every one"
        return
    safe = f"{shared.largest_safe_utilization:.2f}" if shared.largest_safe_utilization else "none"
    yield f"largest safe share: {safe}; largest that does not exceed: {shared.largest_utilization:.2f}"


def _columns(row: SharedPhase, *, frozen: bool) -> list[int]:
    apart = row.reference_bytes + row.reward_bytes
    trainer = row.trainer_bytes + row.outside_bytes
    return [
        *([trainer, apart] if frozen else [trainer + apart]),
        row.engine_weights_bytes,
        row.engine_kv_cache_bytes,
        row.engine_activation_bytes + row.engine_outside_bytes,
        row.total_bytes,
    ]


_NAMES = {
    HostCategory.PROCESS: "processes and libraries",
    HostCategory.WORKER: "workers that load data",
    HostCategory.DATASET: "data set",
    HostCategory.BATCH: "batches read ahead",
    HostCategory.PINNED_CACHE: "pinned and kept",
    HostCategory.SHARED: "shared by the ranks",
}


def host_lines(host: HostStatement, style: Style, asked_by: str = "cluster.host_memory") -> Iterator[str]:
    """Every kind of node: what it holds at its highest point, and what there is; in short where nothing is judged.

    `asked_by`: where somebody may say what a node has.
    """
    for node in host.nodes:
        if host.verdict is None:
            yield from _unjudged(node, style, asked_by)
            continue
        yield style.paint(f"host of {nodes_of(node)}", "bold")
        yield from _node(node, host, style)
        yield ""


def host_sentence(host: HostStatement) -> str:
    """Whether the fullest node has the memory, in one sentence; empty where nothing is judged."""
    node, capacity = host.fullest, host.capacity_bytes
    if host.verdict is None:
        return ""
    if host.verdict == Verdict.FITS:
        return f"On the host {size(host.headroom_bytes)} of {size(capacity)} stay free on {nodes_of(node)}."
    if host.verdict == Verdict.EXCEEDS:
        return (
            f"It does not fit on the host: {nodes_of(node)} would take {size(-host.headroom_bytes)} more main memory "
            f"than the {size(capacity)} there are."
        )
    return (
        f"It is tight on the host: {size(node.peak.bytes)} fit into {size(capacity)} on {nodes_of(node)}, but not "
        f"{size(max(node.peak.interval_bytes[1], node.peak.bytes + node.file_bytes))}, which it may take."
    )


def host_needs(host: HostStatement) -> str:
    """What the fullest node takes of what there is, where, and when."""
    node = host.fullest
    needs = f"{size(node.peak.bytes)} of {size(host.capacity_bytes)} of main memory"
    return f"{needs} on {nodes_of(node)}, {_host_moment(node)}"


def _host_moment(node: NodeStatement) -> str:
    phase = node.peak.phase.value.replace("_", " ")
    return f"{phase} of iteration {node.peak.iteration}" if node.peak.iteration else phase


def nodes_of(node: NodeStatement) -> str:
    """The nodes and their ranks, in words."""
    nodes = f"node {node.nodes}" if node.nodes.isdigit() else f"each of nodes {node.nodes}"
    ranks = f"rank {node.ranks}" if node.ranks.isdigit() else f"ranks {node.ranks}"
    return f"{nodes} ({ranks})"


def _unjudged(node: NodeStatement, style: Style, asked_by: str) -> Iterator[str]:
    low, high = (size(each) for each in node.peak.interval_bytes)
    yield f"host of {nodes_of(node)}: {size(node.peak.bytes)} of main memory, {low} to {high}"
    yield style.paint(f"  not judged: {asked_by} does not say what a node has", "dim")
    yield ""


def _node(node: NodeStatement, host: HostStatement, style: Style) -> Iterator[str]:
    peak = node.peak
    yield f"  at the peak, {_host_moment(node)}: {size(peak.bytes)}"
    for category in HostCategory:
        if count := node.parts.get(category, 0):
            name = _NAMES.get(category, category.value.replace("_", " "))
            yield f"  {name:<{_LABEL}}{size(count):>{_SIZE}}{count / peak.bytes:>7.1%}"
    low, high = peak.interval_bytes
    yield style.paint(f"  {'node':<{_LABEL}}{size(peak.bytes):>{_SIZE}}", "bold")
    yield f"  {'  from what is assumed':<{_LABEL}}{size(low):>{_SIZE}} to {size(high)}"
    if node.file_bytes:
        yield f"  {'mapped files besides':<{_LABEL}}{size(node.file_bytes):>{_SIZE}}"
    for each in node.local_ranks:
        of = f"{each.count} {style.times} like rank {each.representative}"
        yield f"  {of:<{_LABEL}}{size(each.resident_bytes):>{_SIZE}} resident each"
    left = host.capacity_bytes - peak.bytes
    yield f"  {'capacity':<{_LABEL}}{size(host.capacity_bytes):>{_SIZE}}"
    label, color = ("too much", "red") if left < 0 else ("headroom", "green")
    yield style.paint(f"  {label:<{_LABEL}}{size(abs(left)):>{_SIZE}}", color)


_LABEL, _SIZE = 26, 12
_MOST_ITERATIONS, _FIRST, _LAST = 12, 4, 2
"""Rows of the phases: of more iterations only some are shown."""
_VERDICT_COLORS = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.EXCEEDS: "red"}


def render(plan: Plan, style: Style, *, notes: Sequence[str] = (), largest: int = 8) -> str:
    """The whole report; `notes` are sentences on where figures come from, `largest` how many holders to show."""
    lines = [*title_lines(name_of(plan.job), describe(plan.job, style), style), *judgement_lines(plan, style, largest)]
    if plan.advice:
        lines += ["", *_advice(plan.advice, style)]
    return join_lines([*lines, "", *provenance_lines(plan, notes, style)])


def title_lines(name: str, parts: Sequence[str], style: Style) -> list[str]:
    """What is reported on, and an empty line."""
    return [style.paint(name, "bold"), *(style.paint(each, "dim") for each in _wrap_parts(parts, style)), ""]


def judgement_lines(
    judged: Judged, style: Style, largest: int = 8, host_asked_by: str = "cluster.host_memory"
) -> Iterator[str]:
    """Every rank class, and the verdict in words. `host_asked_by`: where it is said what a node has."""
    for statement in judged.rank_classes:
        yield from (*_rank_class(statement, judged, style, largest), "")
    if judged.host is not None:
        yield from host_lines(judged.host, style, host_asked_by)
    for line in _wrap(verdict_sentence(judged), style):
        yield style.paint(line, _VERDICT_COLORS[judged.verdict])
    shared = deciding(judged).shared
    for sentence in shared.kept if shared is not None else ():
        yield from _wrap(f"{sentence[0].upper()}{sentence[1:]}.", style)


def provenance_lines(judged: Judged, notes: Sequence[str], style: Style) -> Iterator[str]:
    """Versions, sentences on where figures come from, seconds."""
    return (style.paint(each, "dim") for each in _provenance(judged, notes, style))


def sentence_lines(sentences: Sequence[str], style: Style) -> Iterator[str]:
    """Each sentence on lines of its own, as wide as the style."""
    return (line for each in sentences for line in _wrap(each, style))


def join_lines(lines: Sequence[str]) -> str:
    """The text of a report."""
    return "\n".join(line.rstrip() for line in lines) + "\n"


def one_line(plan: Plan) -> str:
    """The verdict in one line, for `planner check`."""
    if plan.host is not None and host_decides(plan):
        return f"{plan.verdict.value}: {name_of(plan.job)} takes {host_needs(plan.host)}"
    worst = deciding(plan)
    needs = f"{size(worst.peak.device_bytes)} of {size(worst.capacity_bytes)}"
    calibrated = "" if plan.calibrated else ", uncalibrated"
    return (
        f"{plan.verdict.value}: {name_of(plan.job)} takes {needs} on {gpu_of(plan.job)} "
        f"({ranks_of(worst)}, {_moment(worst)}{calibrated})"
    )


def bound_line(job: Mapping[str, Any], bound: Bound) -> str:
    """The verdict on a job (its bundle) by its lower bound alone, in one line."""
    needs = f"at least {size(bound.least_bytes)} of {size(bound.capacity_bytes)}"
    return (
        f"{Verdict.EXCEEDS.value}: {name_of(job)} takes {needs} on {gpu_of(job)} "
        "(parameters, optimizer state, CUDA context, and gradients or what a forward saves)"
    )


def _rank_class(statement: RankClassStatement, plan: Judged, style: Style, largest: int) -> Iterator[str]:
    yield style.paint(_ranks(statement, plan), "bold")
    yield from _phases(statement, style)
    yield from _moments(statement, style)
    yield ""
    yield from _categories(statement, style)
    yield ""
    yield from _holders(statement.holders, style, largest)
    yield ""
    if statement.shared is None:
        yield from _device(statement, plan, style)
    else:
        yield from shared_lines(statement, statement.shared, style)


def _ranks(statement: RankClassStatement, plan: Judged) -> str:
    if len(plan.rank_classes) == 1:
        return ranks_of(statement)
    where = ", ".join(f"{axis} {at}" for axis, at in statement.coordinates.items())
    return f"{ranks_of(statement)}, like rank {statement.representative}" + (f" ({where})" if where else "")


def _phases(statement: RankClassStatement, style: Style) -> Iterator[str]:
    arrow = " ◂ peak" if style.unicode else "<- peak"
    iterations = _iterations(statement.phases)
    repeated = _repeated(iterations)
    left_out = _shown([number for number in iterations if number not in repeated], statement.peak.iteration)
    shown = [phase for number in left_out for phase in iterations[number]]
    indent = max(13, *(len(f"iteration {each.iteration} ") for each in shown))
    table = _Table(_LABEL, "phase", ("allocated", "reserved", "at its end"))
    iteration = -1
    for each in shown:
        head = f"iteration {each.iteration}" if each.iteration > 0 and each.iteration != iteration else ""
        iteration = each.iteration
        label = f"{head:<{indent}}{_phase(each.phase.value)}" if each.iteration > 0 else _phase(each.phase.value)
        table.add(label, (each.peak_allocated_bytes, each.peak_reserved_bytes, each.end_allocated_bytes))
    heads, *rows = table.lines()
    yield style.paint(heads, "dim")
    for each, row in zip(shown, rows, strict=True):
        if each is iterations[each.iteration][0] and (left := left_out[each.iteration]):
            yield style.paint(f"  {'':<{indent}}{left} iterations between", "dim")
        peak = (each.phase, each.iteration) == (statement.peak.phase, statement.peak.iteration)
        yield style.paint(f"{row} {arrow}", "bold") if peak else row
        if each is iterations[each.iteration][-1] and each.iteration in repeated.values():
            last = max(number for number, like in repeated.items() if like == each.iteration)
            yield style.paint(f"  {'':<{indent}}and so until iteration {last}", "dim")


def _moments(statement: RankClassStatement, style: Style) -> Iterator[str]:
    if not statement.moments:
        return
    names = max(_LABEL - 2, *(len(each.name) for each in statement.moments))
    table = _Table(2 * _LABEL, "moments when jobs die", ("allocated", "reserved", "device"))
    for each in statement.moments:
        label = f"{each.name:<{names}}  {_phase(each.phase.value)}, step {each.iteration}"
        table.add(label, (each.allocated_bytes, each.reserved_bytes, each.device_bytes))
    heads, *rows = table.lines()
    yield ""
    yield style.paint(heads, "dim")
    for each, row in zip(statement.moments, rows, strict=True):
        yield row
        narrower = replace(style, width=style.width - 4)
        yield from (style.paint(f"    {line}", "dim") for line in _wrap(each.sentence, narrower))


class _Table:
    """Labels with sizes behind them, right-aligned, from `width` on or where the longest label leaves room."""

    def __init__(self, width: int, head: str, heads: Sequence[str]) -> None:
        self._width, self._rows = width, [(head, list(heads))]

    def add(self, label: str, sizes: Sequence[int]) -> None:
        self._rows.append((label, [size(count) for count in sizes]))

    def lines(self) -> list[str]:
        """The heads, and a line a row."""
        first = max(self._width + _SIZE, *(len(label) + 1 + len(sizes[0]) for label, sizes in self._rows))
        return [
            f"  {label}{sizes[0]:>{first - len(label)}}" + "".join(f"{each:>{_SIZE}}" for each in sizes[1:])
            for label, sizes in self._rows
        ]


def _iterations(phases: Sequence[PhaseStatement]) -> dict[int, list[PhaseStatement]]:
    found: dict[int, list[PhaseStatement]] = {}
    for each in phases:
        found.setdefault(each.iteration, []).append(each)
    return found


def _repeated(iterations: Mapping[int, Sequence[PhaseStatement]]) -> dict[int, int]:
    """Iterations of a long run that are like the one before them, with the first of those: from the third alike on."""
    alike: dict[int, int] = {}
    first, before = 0, None
    for number, phases in iterations.items():
        sizes = [replace(each, iteration=0) for each in phases]
        if sizes == before:
            alike[number] = first
        else:
            first, before = number, sizes
    often = Counter(alike.values())
    return {number: like for number, like in alike.items() if often[like] > 1}


def _shown(iterations: Sequence[int], peak: int) -> dict[int, int]:
    """Of many iterations the first, the last and the one of the peak, each with how many are left out before it."""
    kept = {*iterations[:_FIRST], *iterations[-_LAST:], peak} if len(iterations) > _MOST_ITERATIONS else {*iterations}
    places = [place for place, number in enumerate(iterations) if number in kept]
    return {iterations[place]: place - before - 1 for before, place in pairwise([-1, *places])}


def _categories(statement: RankClassStatement, style: Style) -> Iterator[str]:
    peak = statement.peak
    yield f"  at the peak, {_moment_of(peak.phase, peak.iteration)}: {size(peak.allocated_bytes)}"
    width = style.width - 2 - 18 - _SIZE - 7 - 2
    largest = max(statement.at_peak.values(), default=0)
    for category in Category:
        count = statement.at_peak.get(category, 0)
        if not count:
            continue
        bar = style.paint(style.bar(count / largest, width), category.value)
        name = category.value.replace("_", " ")
        yield f"  {name:<18}{size(count):>{_SIZE}}{count / peak.allocated_bytes:>6.1%}   {bar}"


def _holders(holders: Sequence[Holder], style: Style, largest: int) -> Iterator[str]:
    alike = _alike(holders)
    if not alike:
        return
    yield "  largest holders"
    shown = alike[:largest]
    names = min(max(len(_where(each)) for each in shown), max(style.width - 70, 20))
    for each in shown:
        name = _short(_where(each), names, style)
        what = "  ".join(part for part in (_pieces(each, style), each.dtype, _maker(each)) if part)
        row = f"  {size(each.bytes):>{_SIZE - 1}}  {each.category.value.replace('_', ' '):<16}{name:<{names}}  {what}"
        yield _short(row, style.width, style)
    rest = alike[largest:]
    if rest:
        yield style.paint(f"  {size(sum(each.bytes for each in rest)):>{_SIZE - 1}}  in {len(rest)} more kinds", "dim")


def _maker(holder: Holder) -> str:
    """The operator, where it says something that category and module do not."""
    named = holder.category in (Category.ACTIVATION, Category.TEMPORARY, Category.COMMUNICATION, Category.OTHER)
    return holder.op if named and holder.module else ""


def _pieces(holder: Holder, style: Style) -> str:
    shape = f" {style.times} ".join(map(str, holder.shape)) or ("scalar" if holder.dtype else "")
    if holder.count == 1:
        return shape
    return f"{holder.count} of {shape}" if shape else f"{holder.count} blocks"


def _alike(holders: Sequence[Holder]) -> list[Holder]:
    """Holders that differ only in the numbers of their modules (`layers.3.mlp`, `layers.4.mlp`) taken together."""
    merged: dict[tuple[Any, ...], list[Holder]] = {}
    for each in holders:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", each.module)
        merged.setdefault((each.category, pattern, each.op, each.shape, each.dtype), []).append(each)
    taken = [
        Holder(
            bytes=sum(each.bytes for each in group),
            category=key[0],
            module=key[1] if len(group) > 1 else group[0].module,
            op=key[2],
            shape=key[3],
            dtype=key[4],
            count=sum(each.count for each in group),
        )
        for key, group in merged.items()
    ]
    return sorted(taken, key=lambda each: -each.bytes)


def _device(statement: RankClassStatement, plan: Judged, style: Style) -> Iterator[str]:
    peak, outside = statement.peak, statement.outside_allocator
    cached = peak.reserved_bytes - peak.allocated_bytes
    parts = [
        ("█", "#", peak.allocated_bytes),
        ("▓", "=", cached),
        ("▒", "+", outside.total_bytes),
        ("·", ".", max(statement.headroom_bytes, 0)),
    ]
    marks = [part[0] if style.unicode else part[1] for part in parts]
    low, high = peak.interval_bytes
    width = style.width - 4
    yield "  on the device"
    yield f"  {style.stack(parts, width)}"
    if statement.headroom_bytes < 0:
        end = statement.capacity_bytes * width // peak.device_bytes
        yield style.paint(f"  {'':{end}}{'▲' if style.unicode else '^'} capacity", "red")
    yield f"  {marks[0]} {'allocated at the peak':<{_LABEL}}{size(peak.allocated_bytes):>{_SIZE}}"
    yield f"  {marks[1]} {'cached by the allocator':<{_LABEL}}{size(cached):>{_SIZE}}"
    yield f"  {marks[2]} {'CUDA context':<{_LABEL}}{size(outside.cuda_context_bytes):>{_SIZE}}"
    if outside.nccl_bytes:
        yield f"  {marks[2]} {'NCCL':<{_LABEL}}{size(outside.nccl_bytes):>{_SIZE}}"
    yield style.paint(f"    {'device':<{_LABEL}}{size(peak.device_bytes):>{_SIZE}}", "bold")
    label = "  95 % interval" if plan.calibrated else "  uncalibrated interval"
    yield f"    {label:<{_LABEL}}{size(low):>{_SIZE}} to {size(high)}"
    yield f"    {'capacity':<{_LABEL}}{size(statement.capacity_bytes):>{_SIZE}}"
    left = f"{size(abs(statement.headroom_bytes)):>{_SIZE}}"
    if statement.headroom_bytes < 0:
        yield style.paint(f"    {'too much':<{_LABEL}}{left}", "red")
    else:
        yield style.paint(f"  {marks[3]} {'headroom':<{_LABEL}}{left}", "green")


def host_decides(judged: Judged) -> bool:
    """Whether the nodes' main memory is what makes the verdict worse than that of the GPUs."""
    return judged.verdict is not worst_verdict(judged.rank_classes)


def verdict_sentence(plan: Judged) -> str:
    """Whether it fits and by how much: on the GPUs in one sentence, on the host in another where that is judged."""
    gpus, host = _gpu_sentence(plan), host_sentence(plan.host) if plan.host is not None else ""
    if not host:
        return gpus
    return f"{host} On the GPUs i{gpus[1:]}" if host_decides(plan) else f"{gpus} {host}"


def _gpu_sentence(plan: Judged) -> str:
    worst, verdict = deciding(plan), worst_verdict(plan.rank_classes)
    ranks = ranks_of(worst)
    capacity, device, high = worst.capacity_bytes, worst.peak.device_bytes, worst.peak.interval_bytes[1]
    if verdict is Verdict.FITS:
        return f"It fits: {size(worst.headroom_bytes)} of {size(capacity)} stay free on {ranks}."
    if verdict is Verdict.EXCEEDS and device > capacity:
        return (
            f"It does not fit: {ranks} would take {size(device - capacity)} more than the {size(capacity)} there are."
        )
    one = worst.ranks.isdigit()
    if verdict is Verdict.EXCEEDS:
        run = "runs" if one else "run"
        return f"It does not fit: {ranks} {run} out of memory, since what is free of the {size(capacity)} is in pieces."
    if worst.cache_releases:
        times = "once" if worst.cache_releases == 1 else f"{worst.cache_releases} times"
        fit = "fits" if one else "fit"
        return f"It is tight: {ranks} {fit} only because the allocator gives its cache back {times}, which takes time."
    return (
        f"It is tight: {size(device)} fit into {size(capacity)} on {ranks}, "
        f"but the upper end of the interval, {size(high)}, does not."
    )


def deciding(plan: Judged) -> RankClassStatement:
    """The rank class that decides: the worst verdict, and of those the one with the least headroom."""
    order = list(Verdict)
    return max(plan.rank_classes, key=lambda each: (order.index(each.verdict), -each.headroom_bytes))


def _advice(advice: Sequence[Advice], style: Style) -> Iterator[str]:
    yield style.paint("What would make it fit, each by itself and proven by a plan", "bold")
    indent = 2 + _SIZE + 9
    for each in advice:
        verdict = style.paint(f"{each.verdict.value:<7}", _VERDICT_COLORS[each.verdict])
        first, *more = textwrap.wrap(change_text(each.change), style.width - indent - 2)
        yield f"  {size(each.device_bytes):>{_SIZE - 1}}  {verdict} {first}"
        yield from (f"{'':{indent}}  {line}" for line in more)


def _provenance(plan: Judged, notes: Sequence[str], style: Style) -> Iterator[str]:
    made = plan.provenance
    parts = [
        f"planner {made.planner}",
        f"torch {made.torch}",
        f"allocator rules {made.allocator_rules}",
        f"GPU catalog {made.catalog}",
        f"calibration {made.calibration}" if plan.calibrated else "uncalibrated",
    ]
    yield from _wrap_parts(parts, style)
    if not plan.calibrated:
        yield from _wrap("Uncalibrated: nothing was measured on this GPU and torch, so the interval is wide.", style)
    for note in notes:
        yield from _wrap(note, style)
    seconds = plan.seconds
    yield f"traced in {seconds.trace:.1f} s, replayed in {seconds.replay:.1f} s, {seconds.total:.1f} s in all"


def _where(holder: Holder) -> str:
    return holder.module or holder.op or "(no module)"


def ranks_of(statement: RankClassStatement) -> str:
    """`rank 3`, or `ranks 0-6`."""
    return ranks_text(statement.ranks)


def _moment(statement: RankClassStatement) -> str:
    at = statement.peak if statement.shared is None else statement.shared.fullest()
    return _moment_of(at.phase, at.iteration)


def _moment_of(at: Phase, iteration: int) -> str:
    return f"{_phase(at.value)} of iteration {iteration}" if iteration else _phase(at.value)


def _phase(name: str) -> str:
    return name.replace("_", " ")


def _short(text: str, width: int, style: Style) -> str:
    if len(text) <= width:
        return text
    dots = "…" if style.unicode else "..."
    return text[: width - len(dots)] + dots


def _wrap_parts(parts: Sequence[str], style: Style) -> list[str]:
    """The parts joined by dots, broken only between them."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{style.dot}{part}" if lines[-1] else part
        if len(longer) <= style.width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return [each for line in lines for each in _wrap(line, style)]


def _wrap(text: str, style: Style) -> list[str]:
    """Lines of the style's width; a number stays with its unit."""
    glued = re.sub(r"(\d) (?=[KMGT]?i?B\b)", r"\1~", text.replace("~", "\0"))
    lines = textwrap.wrap(glued, style.width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("~", " ").replace("\0", "~") for line in lines]

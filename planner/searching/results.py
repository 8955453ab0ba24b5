"""What searches found, as JSON objects and as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from planner.report.style import Style, size
from planner.searching.engine import Row, SearchResult
from planner.searching.exact_plans import Exact
from planner.searching.extremes import Fewest, Largest
from planner.searching.sweeping import Point, Sweep
from planner.searching.weighing import Objective

SEARCH, MAX, MIN, SWEEP = "planner.search/1", "planner.max/1", "planner.min/1", "planner.sweep/1"


def search_to_json(result: SearchResult) -> dict[str, Any]:
    """The candidates that fit, the best first, and what was done to find them."""
    scales, best = result.scales, fastest_of(result)
    seconds = {"first": result.first_seconds, "total": result.seconds}
    return {
        "schema": SEARCH,
        "objective": result.objective.value,
        "complete": result.complete,
        "stopped": result.stopped,
        "candidates": [row_to_json(row, best) for row in result.rows],
        "closest": None if result.closest is None else row_to_json(result.closest, best),
        "space": {
            "candidates": scales.size,
            "looked_at": scales.looked_at,
            "broken_rules": dict(scales.ruled_out),
            "exceed_by_bound": scales.beyond_bound,
            "left_out_as_larger": result.left_out,
            "left_out_by_roofline": result.left_by_roofline,
            "planned": result.planned,
            "traced": result.traced,
            "refused": result.refused,
            "undecided": result.undecided,
        },
        "global_batch": result.space.global_batch,
        "seconds": {name: None if took is None else round(took, 3) for name, took in seconds.items()},
    }


def fastest_of(result: SearchResult) -> float:
    """The most tokens a second of those shown; 0 where none is known."""
    return max((row.exact.tokens_per_second for row in result.rows), default=0.0)


def row_to_json(row: Row, fastest: float) -> dict[str, Any]:
    """One candidate. `relative_cost`: GPU time of a token over that of the fastest shown."""
    rate = row.exact.tokens_per_second
    return {
        "change": row.candidate.change,
        **exact_to_json(row.exact),
        "relative_cost": round(fastest / rate, 4) if rate and fastest else None,
    }


def exact_to_json(exact: Exact) -> dict[str, Any]:
    """What a plan said; times are null where the speeds of the GPU are not known."""
    figures = ("device_bytes", "headroom_bytes", "capacity_bytes")
    rate = exact.tokens_per_second
    return {
        "verdict": exact.verdict.value,
        **{name: getattr(exact, name) for name in figures},
        "step_seconds": exact.step_seconds or None,
        "tokens_per_second": rate or None,
        "gpu_hours_per_billion_tokens": round(1e9 / rate / 3600, 2) if rate else None,
    }


def largest_to_json(largest: Largest) -> dict[str, Any]:
    """The answer of `planner max`: every size that was planned is in it."""
    return {
        "schema": MAX,
        "axis": largest.name,
        "value": largest.value,
        "step": largest.step,
        "stopped": largest.stopped,
        "plan": None if largest.exact is None else exact_to_json(largest.exact),
        "planned": [{"value": size, **exact_to_json(exact)} for size, exact in sorted(largest.planned.items())],
    }


def fewest_to_json(fewest: Fewest) -> dict[str, Any]:
    """The answer of `planner min`."""
    return {
        "schema": MIN,
        "axis": "gpus",
        "value": fewest.gpus,
        "stopped": fewest.stopped,
        "candidate": None if fewest.row is None else row_to_json(fewest.row, 0.0),
        "closest": None if fewest.closest is None else row_to_json(fewest.closest, 0.0),
        "not_enough": [{"gpus": gpus, "why": why} for gpus, why in fewest.tried.items()],
    }


def sweep_to_json(sweep: Sweep) -> dict[str, Any]:
    """Every point of a grid; `device_bytes` of what the bound excludes is null, and `least_bytes` is its bound."""
    names = [axis.name for axis in sweep.space.axes]
    return {
        "schema": SWEEP,
        "axes": [{"name": axis.name, "values": list(axis.labels)} for axis in sweep.space.axes],
        "stopped": sweep.stopped,
        "points": [_point_to_json(point, names) for point in sweep.points],
    }


def _point_to_json(point: Point, names: Sequence[str]) -> dict[str, Any]:
    said = {} if point.exact is None else exact_to_json(point.exact)
    return {
        "at": dict(zip(names, point.labels, strict=True)),
        "verdict": point.verdict,
        **{name: said.get(name) for name in ("device_bytes", "headroom_bytes", "step_seconds", "tokens_per_second")},
        "least_bytes": point.least_bytes or None,
        "refused": point.refused,
    }


_COLORS = {"fits": "green", "tight": "bold", "exceeds": "red"}
_STOPPED = {"time": "The time was over", "interrupted": "It was interrupted"}


def render_search(result: SearchResult, style: Style) -> str:
    """The candidates, and what was done to find them."""
    best, count = {Objective.COST: "the time of a step", Objective.MEMORY: "least memory"}, len(result.rows)
    ranked = f"by {best.get(result.objective, 'most headroom')}, each proven by a plan"
    title = f"{count} candidate{'s' if count > 1 else ''} {ranked}" if count else "No candidate is known to fit"
    lines = [style.paint(title, "bold")]
    if result.stopped:
        ranks = " and could rank before the last one shown" if result.rows else ""
        undecided = f"{result.undecided:,} of {result.scales.left:,} candidates are undecided{ranks}."
        lines += textwrap.wrap(f"{_STOPPED[result.stopped]}: {undecided}", style.width)
    lines.append("")
    if result.rows:
        lines += [*_table(result, style), ""]
    lines += [line for sentence in _sentences(result) for line in textwrap.wrap(sentence, style.width)]
    if result.objective is Objective.COST and result.rows:
        assumed = (
            "Tokens a second are of each GPU, by the kernels of the traced step (docs/results/step-times.md has its"
            " error). An estimate decides which candidates are traced (docs/search.md)."
        )
        lines += [style.paint(line, "dim") for line in textwrap.wrap(assumed, style.width)]
    return "\n".join(lines) + "\n"


def _table(result: SearchResult, style: Style) -> Iterator[str]:
    yield style.paint(f"  {'tokens/s':>8}  {'device bytes':>12}  {'headroom':>10}  verdict  layout and settings", "dim")
    for row in result.rows:
        yield from row_lines(row, style)


def row_lines(row: Row, style: Style) -> Iterator[str]:
    """A candidate with its plan, as lines of the table."""
    rate = f"{row.exact.tokens_per_second:8,.0f}" if row.exact.tokens_per_second else "       -"
    verdict = row.exact.verdict.value
    head = f"  {rate}  {size(row.exact.device_bytes):>12}  {size(row.exact.headroom_bytes):>10}  "
    first, *more = textwrap.wrap(row.candidate.describe(), style.width - len(head) - 9) or [""]
    yield f"{head}{style.paint(f'{verdict:<7}', _COLORS[verdict])}  {first}"
    yield from (" " * (len(head) + 9) + line for line in more)


def _sentences(result: SearchResult) -> Iterator[str]:
    scales = result.scales
    spread = f", spread evenly over {scales.size:,}" if scales.looked_at != scales.size else ""
    yield (
        f"Of {scales.looked_at:,}{spread} candidates {sum(scales.ruled_out.values()):,} break a rule,"
        f" {scales.beyond_bound:,} exceed the GPU by their lower bound, {result.left_out:,} are larger than one whose"
        f" tensors exceed it, and {result.planned:,} were planned ({result.traced:,} traces)."
    )
    if result.left_by_roofline:
        yield (
            f"{result.left_by_roofline:,} were not planned, since their matrix products and collectives alone are"
            " estimated to take longer than a step of the last one shown: no bound."
        )
    if scales.ruled_out:
        rules = (f"{scales.explain(rule)} ({count:,})" for rule, count in scales.ruled_out.most_common())
        yield f"Rules that were broken: {'; '.join(rules)}."
    for reason, count in list(result.refused.items())[:3]:
        yield f"Not planned ({count:,}): {reason}."
    if not result.rows and result.closest is not None:
        yield _closest(result.closest)
    elif not result.rows and scales.nearest_bound is not None:
        yield f"By the lower bound at least {size(scales.nearest_bound[0])} are missing in every candidate."
    first = "" if result.first_seconds is None else f", the first after {result.first_seconds:.1f} s"
    yield f"{result.seconds:.1f} s{first}."


def _closest(row: Row) -> str:
    return f"Closest came {row.candidate.describe()}: it lacks {size(-row.exact.headroom_bytes)}."


def render_largest(largest: Largest, style: Style) -> str:
    """The answer of `planner max`."""
    if largest.value:
        beyond = f"; {largest.value + largest.step:,} does not"
        title = f"{largest.name} {largest.value:,} fits{beyond if largest.beyond and not largest.stopped else ''}"
    else:
        title = f"No {largest.name} is known to fit" + ("" if largest.stopped else f", not even {largest.step}")
    lines = [style.paint(title, "bold"), ""]
    for count, exact in sorted(largest.planned.items()):
        verdict = exact.verdict.value
        lines.append(
            f"  {count:>10,}  {size(exact.device_bytes):>12} of {size(exact.capacity_bytes)}  "
            f"{style.paint(verdict, _COLORS[verdict])}"
        )
    if largest.stopped:
        lines += ["", f"{_STOPPED[largest.stopped]}: larger ones may fit too."]
    return "\n".join(lines) + "\n"


def render_fewest(fewest: Fewest, style: Style) -> str:
    """The answer of `planner min`."""
    if fewest.row is not None:
        exact = fewest.row.exact
        lines = [
            style.paint(f"{fewest.gpus:,} GPU{'s hold' if fewest.gpus > 1 else ' holds'} it", "bold"), "",
            *textwrap.wrap(f"{fewest.row.candidate.describe()}: {size(exact.device_bytes)} of"
                           f" {size(exact.capacity_bytes)}, {exact.verdict.value}", style.width,
                           initial_indent="  ", subsequent_indent="  "), "",
        ]  # fmt: skip
    else:
        lines = [style.paint("No number of GPUs that was tried is enough", "bold"), ""]
    for gpus, why in fewest.tried.items():
        lines += textwrap.wrap(f"{gpus:,}: {why}", style.width, initial_indent="  ", subsequent_indent="      ")
    if fewest.closest is not None and fewest.row is None:
        lines.append(_closest(fewest.closest))
    if fewest.stopped:
        lines.append(f"{_STOPPED[fewest.stopped]}.")
    return "\n".join(lines) + "\n"


def render_sweep(sweep: Sweep, style: Style) -> str:
    """A grid of two axes as a table, anything else as a list."""
    axes, lines = sweep.space.axes, []
    if len(axes) == 2:
        down, across = axes
        lines.append(style.paint(f"{down.name} down, {across.name} across", "bold"))
        head = max(map(len, down.labels))
        width = max(9, *(len(label) + 2 for label in across.labels))
        lines.append(" " * head + "".join(f"{label:>{width}}" for label in across.labels))
        for row, label in enumerate(down.labels):
            points = sweep.points[row * len(across.labels) : (row + 1) * len(across.labels)]
            lines.append(f"{label:>{head}}" + "".join(_cell(point, width, style) for point in points))
    else:
        for point in sweep.points:
            at = ", ".join(f"{axis.name} {label}" for axis, label in zip(axes, point.labels, strict=True))
            lines.append(f"{_cell(point, 10, style)}  {at}")
    refused = dict.fromkeys(point.refused for point in sweep.points if point.refused)
    lines += [
        "",
        "GiB of the fullest rank; > is a lower bound that exceeds the GPU, ! exceeds it by a plan, ~ is tight.",
    ]
    lines += [line for why in list(refused)[:4] for line in textwrap.wrap(f"- {why}", style.width)]
    if sweep.stopped:
        lines.append(f"{_STOPPED[sweep.stopped]}: points marked ? were not reached.")
    return "\n".join(lines) + "\n"


def _cell(point: Point, width: int, style: Style) -> str:
    if point.exact is not None:
        mark = {"exceeds": "!", "tight": "~"}.get(point.verdict, "")
        return style.paint(f"{mark}{point.exact.device_bytes / 2**30:.1f}".rjust(width), _COLORS[point.verdict])
    if point.least_bytes:
        return style.paint(f">{point.least_bytes / 2**30:.1f}".rjust(width), "red")
    return ("-" if point.refused else "?").rjust(width)


def csv_of(sweep: Sweep) -> Iterator[Sequence[object]]:
    """Rows of a table, the first with the names."""
    figures = ("verdict", "device_bytes", "headroom_bytes", "tokens_per_second", "least_bytes", "refused")
    document = sweep_to_json(sweep)
    yield (*(axis["name"] for axis in document["axes"]), *figures)
    for point in document["points"]:
        yield (*point["at"].values(), *("" if point[name] is None else point[name] for name in figures))

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
from planner.searching.weighing import ASSUMPTIONS, Objective

SEARCH, MAX, MIN, SWEEP = "planner.search/1", "planner.max/1", "planner.min/1", "planner.sweep/1"


def search_to_json(result: SearchResult) -> dict[str, Any]:
    """The candidates that fit, the best first, and what was done to find them."""
    scales, best = result.scales, best_cost(result)
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
            "planned": result.planned,
            "traced": result.traced,
            "refused": result.refused,
            "undecided": result.undecided,
        },
        "global_batch": result.space.global_batch,
        "assumptions": list(ASSUMPTIONS) if result.objective is Objective.COST else [],
        "seconds": {"first": _rounded(result.first_seconds), "total": _rounded(result.seconds)},
    }


def best_cost(result: SearchResult) -> float:
    """The least cost of those shown; 0 where none is known."""
    return min((row.cost.per_token for row in result.rows if row.cost is not None), default=0.0)


def row_to_json(row: Row, best: float) -> dict[str, Any]:
    """One candidate. `relative_cost`: GPU time of a token over that of the cheapest shown."""
    cost = row.cost
    parts = {} if cost is None else {
        name: round(getattr(cost, name) / cost.step, 3)
        for name in ("compute", "memory", "blocking", "exposed", "bubble", "optimizer")
    }  # fmt: skip
    return {
        "change": row.candidate.change,
        **exact_to_json(row.exact),
        "relative_cost": round(cost.per_token / best, 4) if cost is not None and best else None,
        "shares_of_cost": parts,
    }


def exact_to_json(exact: Exact) -> dict[str, Any]:
    """What a plan said."""
    return {
        "verdict": exact.verdict.value,
        "device_bytes": exact.device_bytes,
        "headroom_bytes": exact.headroom_bytes,
        "capacity_bytes": exact.capacity_bytes,
    }


def largest_to_json(found: Largest) -> dict[str, Any]:
    """The answer of `planner max`: every size that was planned is in it."""
    return {
        "schema": MAX,
        "axis": found.name,
        "value": found.value,
        "step": found.step,
        "stopped": found.stopped,
        "plan": None if found.exact is None else exact_to_json(found.exact),
        "planned": [{"value": size, **exact_to_json(exact)} for size, exact in sorted(found.planned.items())],
    }


def fewest_to_json(found: Fewest) -> dict[str, Any]:
    """The answer of `planner min`."""
    return {
        "schema": MIN,
        "axis": "gpus",
        "value": found.gpus,
        "stopped": found.stopped,
        "candidate": None if found.row is None else row_to_json(found.row, 0.0),
        "closest": None if found.closest is None else row_to_json(found.closest, 0.0),
        "not_enough": [{"gpus": gpus, "why": why} for gpus, why in found.tried.items()],
    }


def sweep_to_json(found: Sweep) -> dict[str, Any]:
    """Every point of a grid; `device_bytes` of what the bound excludes is null, and `least_bytes` is its bound."""
    return {
        "schema": SWEEP,
        "axes": [{"name": axis.name, "values": list(axis.labels)} for axis in found.space.axes],
        "stopped": found.stopped,
        "points": [
            {
                "at": dict(zip((axis.name for axis in found.space.axes), point.labels, strict=True)),
                "verdict": point.verdict,
                "device_bytes": None if point.exact is None else point.exact.device_bytes,
                "headroom_bytes": None if point.exact is None else point.exact.headroom_bytes,
                "least_bytes": point.least_bytes or None,
                "refused": point.refused,
            }
            for point in found.points
        ],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


_COLORS = {"fits": "green", "tight": "bold", "exceeds": "red"}
_STOPPED = {"time": "The time was over", "interrupted": "It was interrupted"}


def render_search(result: SearchResult, style: Style) -> str:
    """The candidates, and what was done to find them."""
    lines = [style.paint(_title(result), "bold")]
    if result.stopped:
        ranks = " and could rank before the last one shown" if result.rows else ""
        said = f"{result.undecided:,} of {result.scales.left:,} candidates are undecided{ranks}."
        lines += textwrap.wrap(f"{_STOPPED[result.stopped]}: {said}", style.width)
    lines.append("")
    if result.rows:
        lines += [*_table(result, style), ""]
    lines += [line for sentence in _sentences(result) for line in textwrap.wrap(sentence, style.width)]
    if result.objective is Objective.COST and result.rows:
        assumed = (
            f"Cost is a roofline's GPU time of a token beside the cheapest's, no promise: {'; '.join(ASSUMPTIONS)}."
        )
        lines += [style.paint(line, "dim") for line in textwrap.wrap(assumed, style.width)]
    return "\n".join(lines) + "\n"


def _title(result: SearchResult) -> str:
    if not result.rows:
        return "No candidate is known to fit"
    best = {Objective.COST: "least cost", Objective.MEMORY: "least memory", Objective.HEADROOM: "most headroom"}
    count = len(result.rows)
    return f"{count} candidate{'s' if count > 1 else ''} by {best[result.objective]}, each proven by a plan"


def _table(result: SearchResult, style: Style) -> Iterator[str]:
    best = best_cost(result)
    yield style.paint(f"  {'cost':>5}  {'device bytes':>12}  {'headroom':>10}  verdict  layout and settings", "dim")
    for row in result.rows:
        cost = f"{row.cost.per_token / best:5.2f}" if row.cost is not None and best else "    -"
        verdict = row.exact.verdict.value
        head = f"  {cost}  {size(row.exact.device_bytes):>12}  {size(row.exact.headroom_bytes):>10}  "
        first, *more = textwrap.wrap(shown_change(row), style.width - len(head) - 9) or [""]
        yield f"{head}{style.paint(f'{verdict:<7}', _COLORS[verdict])}  {first}"
        yield from (" " * (len(head) + 9) + line for line in more)


def shown_change(row: Row) -> str:
    """The layout in words, then whatever else is different from the job."""
    job, change = row.candidate.job, row.candidate.change
    degrees = {
        axis: getattr(job.parallel, axis).degree for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
    }
    layout = " ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "one GPU"
    hidden = (*(f"parallel.{axis}.degree" for axis in degrees), "cluster.nodes", "cluster.gpus_per_node")
    settings = [f"{key}: {_value(value)}" for key, value in change.items() if key not in hidden]
    return "; ".join([layout, *settings])


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "none" if value in ("", None) else str(value)


def _sentences(result: SearchResult) -> Iterator[str]:
    scales = result.scales
    looked = f"{scales.looked_at:,}" if scales.looked_at == scales.size else (
        f"{scales.looked_at:,}, spread evenly over {scales.size:,}"
    )  # fmt: skip
    yield (
        f"Of {looked} candidates {sum(scales.ruled_out.values()):,} break a rule, {scales.beyond_bound:,} exceed the "
        f"GPU by their lower bound, {result.left_out:,} are larger than one whose tensors exceed it, and "
        f"{result.planned:,} were planned ({result.traced:,} traces)."
    )
    if scales.ruled_out:
        rules = "; ".join(f"{rule}: {count:,}" for rule, count in scales.ruled_out.most_common())
        yield f"Rules that were broken: {rules}."
    for reason, count in list(result.refused.items())[:3]:
        yield f"Not planned ({count:,}): {reason}."
    if not result.rows:
        yield from _closest(result)
    yield f"{result.seconds:.1f} s" + (
        f", the first after {result.first_seconds:.1f} s." if result.first_seconds is not None else "."
    )


def _closest(result: SearchResult) -> Iterator[str]:
    if result.closest is not None:
        lacks = size(-result.closest.exact.headroom_bytes)
        yield f"Closest came {shown_change(result.closest)}: it lacks {lacks}."
    elif result.scales.nearest_bound is not None:
        yield f"By the lower bound at least {size(result.scales.nearest_bound[0])} are missing in every candidate."


def render_largest(found: Largest, style: Style) -> str:
    """The answer of `planner max`."""
    lines = [style.paint(_largest_title(found), "bold"), ""]
    for count, exact in sorted(found.planned.items()):
        verdict = exact.verdict.value
        lines.append(
            f"  {count:>10,}  {size(exact.device_bytes):>12} of {size(exact.capacity_bytes)}  "
            f"{style.paint(verdict, _COLORS[verdict])}"
        )
    if found.stopped:
        lines += ["", f"{_STOPPED[found.stopped]}: larger ones may fit too."]
    return "\n".join(lines) + "\n"


def _largest_title(found: Largest) -> str:
    if not found.value:
        return f"No {found.name} is known to fit" + ("" if found.stopped else f", not even {found.step}")
    sure = "" if found.stopped else f"; {found.value + found.step:,} does not" if found.beyond is not None else ""
    return f"{found.name} {found.value:,} fits{sure}"


def render_fewest(found: Fewest, style: Style) -> str:
    """The answer of `planner min`."""
    if found.row is not None:
        exact = found.row.exact
        lines = [
            style.paint(f"{found.gpus:,} GPU{'s hold' if found.gpus > 1 else ' holds'} it", "bold"), "",
            *textwrap.wrap(f"{shown_change(found.row)}: {size(exact.device_bytes)} of {size(exact.capacity_bytes)}, "
                           f"{exact.verdict.value}", style.width, initial_indent="  ", subsequent_indent="  "), "",
        ]  # fmt: skip
    else:
        lines = [style.paint("No number of GPUs that was tried is enough", "bold"), ""]
    for gpus, why in found.tried.items():
        lines += textwrap.wrap(f"{gpus:,}: {why}", style.width, initial_indent="  ", subsequent_indent="      ")
    if found.closest is not None and found.row is None:
        lines.append(
            f"Closest came {shown_change(found.closest)}: it lacks {size(-found.closest.exact.headroom_bytes)}."
        )
    if found.stopped:
        lines.append(f"{_STOPPED[found.stopped]}.")
    return "\n".join(lines) + "\n"


def render_sweep(found: Sweep, style: Style) -> str:
    """A grid of two axes as a table, anything else as a list."""
    axes = found.space.axes
    lines = list(_grid(found, style)) if len(axes) == 2 else list(_list(found, style))
    refused = dict.fromkeys(point.refused for point in found.points if point.refused)
    lines += [
        "",
        "GiB of the fullest rank; > is a lower bound that exceeds the GPU, ! exceeds it by a plan, ~ is tight.",
    ]
    lines += [line for why in list(refused)[:4] for line in textwrap.wrap(f"- {why}", style.width)]
    if found.stopped:
        lines.append(f"{_STOPPED[found.stopped]}: points marked ? were not reached.")
    return "\n".join(lines) + "\n"


def _grid(found: Sweep, style: Style) -> Iterator[str]:
    down, across = found.space.axes
    yield style.paint(f"{down.name} down, {across.name} across", "bold")
    head = max(map(len, down.labels))
    width = max(9, *(len(label) + 2 for label in across.labels))
    yield " " * head + "".join(f"{label:>{width}}" for label in across.labels)
    for row, label in enumerate(down.labels):
        points = found.points[row * len(across.labels) : (row + 1) * len(across.labels)]
        yield f"{label:>{head}}" + "".join(_cell(point, width, style) for point in points)


def _list(found: Sweep, style: Style) -> Iterator[str]:
    for point in found.points:
        at = ", ".join(f"{axis.name} {label}" for axis, label in zip(found.space.axes, point.labels, strict=True))
        yield f"{_cell(point, 10, style)}  {at}"


def _cell(point: Point, width: int, style: Style) -> str:
    if point.exact is not None:
        mark = {"exceeds": "!", "tight": "~"}.get(point.verdict, "")
        return style.paint(f"{mark}{point.exact.device_bytes / 2**30:.1f}".rjust(width), _COLORS[point.verdict])
    if point.least_bytes:
        return style.paint(f">{point.least_bytes / 2**30:.1f}".rjust(width), "red")
    return ("-" if point.refused else "?").rjust(width)


def csv_of(found: Sweep) -> Iterator[Sequence[object]]:
    """Rows of a table, the first with the names."""
    yield (
        *(axis.name for axis in found.space.axes),
        "verdict",
        "device_bytes",
        "headroom_bytes",
        "least_bytes",
        "refused",
    )
    for point in found.points:
        exact = point.exact
        figures = ("", "") if exact is None else (exact.device_bytes, exact.headroom_bytes)
        yield (*point.labels, point.verdict, *figures, point.least_bytes or "", point.refused)

"""Memory over time as a chart of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.report.category_colors import LIGHT, STACKED
from planner.report.statement import RankClassStatement
from planner.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from planner.api.work import MemoryOverTime


def draw(found: MemoryOverTime, statement: RankClassStatement, ax: Axes | None) -> Axes:
    """The categories stacked, reserved bytes above them, capacity as a line; iterations are named below."""
    ax = new_axes("write_timeline()") if ax is None else ax
    series = found.series
    held = [each for each in STACKED if each in series.allocated_bytes]
    sizes = [[count / GIB for count in series.allocated_bytes[each]] for each in held]
    labels = [each.value.replace("_", " ") for each in held]
    ax.stackplot(series.at, sizes, labels=labels, colors=[LIGHT[each] for each in held], step="post")
    reserved = [count / GIB for count in series.reserved_bytes]
    ax.step(series.at, reserved, where="post", color="0.4", linewidth=0.8, label="reserved")
    room = (statement.capacity_bytes - statement.outside_allocator.total_bytes) / GIB
    ax.axhline(room, color="tab:red", linewidth=0.8, linestyle="--", label="capacity for the allocator")
    ax.set_xlim(0, found.events - 1)
    ax.set_ylabel("GiB")
    ax.set_xticks(
        [each.first for each in found.phases],
        [f"{each.phase.value.replace('_', ' ')} {each.iteration or ''}".strip() for each in found.phases],
        rotation=45,
        ha="right",
        fontsize="small",
    )
    ax.set_title(f"ranks {statement.ranks}: {statement.verdict.value}")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    return ax


def new_axes(other: str) -> Axes:
    """Of a figure of their own. Raises PlannerError without matplotlib, which `other` does not need."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise PlannerError(
            "a chart needs matplotlib, which is not installed",
            allowed=f"{other}, which needs nothing",
            remedy="pip install 'gpu-memory-planner[plot]'",
        ) from None
    _, ax = pyplot.subplots(figsize=(10, 4), layout="constrained")
    return ax

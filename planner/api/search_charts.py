"""What searches found as charts of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.api.chart import new_axes
from planner.searching import heat_map as heat_maps
from planner.searching.documents import best_cost
from planner.searching.engine import SearchResult
from planner.searching.extremes import Largest
from planner.searching.sweeping import Sweep
from planner.searching.text import shown_change
from planner.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMES = 5


def scatter(found: SearchResult, ax: Axes | None) -> Axes:
    """Device bytes of the fullest rank against the cost beside the cheapest's, or against the rank where no cost is
    known; the best are named."""
    ax = new_axes("to_dict()") if ax is None else ax
    best = best_cost(found)
    costs = [row.cost.per_token / best if row.cost and best else at for at, row in enumerate(found.rows, start=1)]
    sizes = [row.exact.device_bytes / GIB for row in found.rows]
    ax.scatter(costs, sizes)
    for cost, size, row in list(zip(costs, sizes, found.rows, strict=True))[:_MOST_NAMES]:
        ax.annotate(shown_change(row).split(";")[0], (cost, size), fontsize="small")
    ax.set_xlabel("cost of a token beside the cheapest's" if best else "rank")
    ax.set_ylabel("GiB of the fullest rank")
    return ax


def sizes(found: Largest, ax: Axes | None) -> Axes:
    """Device bytes over the sizes that were planned, and the capacity."""
    ax = new_axes("to_dict()") if ax is None else ax
    planned = sorted(found.planned.items())
    ax.plot([size for size, _ in planned], [exact.device_bytes / GIB for _, exact in planned], marker="o")
    for exact in list(found.planned.values())[:1]:
        ax.axhline(exact.capacity_bytes / GIB, color="tab:red", linewidth=0.8, linestyle="--")
    ax.set_xlabel(found.name)
    ax.set_ylabel("GiB of the fullest rank")
    return ax


def heat_map(found: Sweep, ax: Axes | None) -> Axes:
    """As `planner sweep --png` draws it."""
    ax = new_axes("to_dict()") if ax is None else ax
    heat_maps.fill(ax, found)
    return ax

"""A sweep over two axes as a picture, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.errors import SettingError, SpecError
from planner.searching.axes import Axis
from planner.searching.sweeping import Sweep
from planner.units import GIB


def refuse_undrawable(axes: Sequence[Axis]) -> None:
    """Raises SpecError for a grid that is no plane, SettingError where matplotlib is missing."""
    if len(axes) != 2:
        raise SpecError(
            f"a heat map has two axes, and {len(axes)} are given", allowed="two axes", remedy="leave --png out",
            place="--png",
        )  # fmt: skip
    _pyplot()


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise SettingError(
            "matplotlib is not installed, and it draws the heat map",
            allowed="--format csv without it",
            remedy="pip install 'gpu-memory-planner[plot]'",
            place="--png",
        ) from None
    return pyplot


def draw(found: Sweep, path: Path) -> None:
    """The grid as a picture in a file. Raises OSError."""
    pyplot = _pyplot()
    pyplot.switch_backend("Agg")
    down, across = found.space.axes
    figure, ax = pyplot.subplots(figsize=(2 + 0.9 * len(across.labels), 1.5 + 0.5 * len(down.labels)))
    fill(ax, found)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def fill(ax: Any, found: Sweep) -> None:
    """GiB of the fullest rank in the colours of the share of the GPU that they take; what exceeds is red."""
    down, across = found.space.axes
    rows = [found.points[at : at + len(across.labels)] for at in range(0, len(found.points), len(across.labels))]
    capacity = found.space.base.cluster.gpu.total_bytes / GIB
    values = [[(p.exact.device_bytes if p.exact else p.least_bytes) / GIB or float("nan") for p in row] for row in rows]
    image = ax.imshow(values, cmap="viridis", vmin=0, vmax=capacity, aspect="auto")
    for y, row in enumerate(rows):
        for x, point in enumerate(row):
            text = "-" if point.refused else f"{'>' if point.exact is None else ''}{values[y][x]:.0f}"
            ax.text(x, y, text, ha="center", va="center", color="red" if point.verdict == "exceeds" else "white")
    ax.set_xticks(range(len(across.labels)), across.labels)
    ax.set_yticks(range(len(down.labels)), down.labels)
    ax.set_xlabel(across.name)
    ax.set_ylabel(down.name)
    ax.figure.colorbar(image, label=f"GiB of the fullest rank, of {capacity:.1f}; red exceeds")

"""`planner.search`, `planner.max` and `planner.sweep`: what fits, as objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Unpack

from planner.api.given import JobSource, JobWords, read_job
from planner.errors import SpecError
from planner.job.schema import Job
from planner.planning.preload import usable
from planner.planning.trace_source import TraceCache, TraceSource
from planner.progress import show_progress
from planner.report.style import Style
from planner.searching import engine, extremes, results, sweeping
from planner.searching.engine import Row, SearchResult
from planner.searching.exact_plans import Exact, ExactPlans
from planner.searching.requests import (
    DEGREE_WORDS,
    SearchRequest,
    axes_of,
    axes_of_degrees,
    gpu_of_base,
    read_gpus,
    written_axes,
)
from planner.searching.space import Space
from planner.searching.weighing import objective_of

Varied = Mapping[str, Any] | Sequence[str]
"""Axes by name with their values, `{"recompute": ["none", "full"], "tp": "1..8"}`, or as `["tp=1..8"]`."""


class _Printed:
    """Shows itself in a notebook as it prints."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True)
class Search(_Printed):
    """Candidates that fit, the best first, each proven by a plan. It prints as `planner search` does."""

    result: SearchResult

    @property
    def candidates(self) -> tuple[Row, ...]:
        """With `exact` (device_bytes, headroom_bytes, verdict), and `candidate.change`, `candidate.job`."""
        return tuple(self.result.rows)

    @property
    def best(self) -> Job | None:
        """The job that `planner.plan` takes; None if nothing is known to fit."""
        return self.result.rows[0].candidate.job if self.result.rows else None

    @property
    def complete(self) -> bool:
        """Whether no candidate could be better; else the time was over before all were decided."""
        return self.result.complete

    def to_dict(self) -> dict[str, Any]:
        """As `planner search --format json` prints it (planner.search/1)."""
        return results.search_to_json(self.result)

    def __str__(self) -> str:
        return results.render_search(self.result, Style())

    def __repr__(self) -> str:
        return f"<Search {len(self.result.rows)} candidates>"


@dataclass(frozen=True)
class Largest(_Printed):
    """The largest size with which a job fits. It prints as `planner max` does."""

    found: extremes.Largest
    job: Job
    """With that size; as it was given where not even the smallest fits."""

    @property
    def value(self) -> int:
        """0 where not even the smallest fits."""
        return self.found.value

    @property
    def planned(self) -> dict[int, Exact]:
        """Every size of which a plan was made."""
        return dict(sorted(self.found.planned.items()))

    def to_dict(self) -> dict[str, Any]:
        """As `planner max --format json` prints it (planner.max/1)."""
        return results.largest_to_json(self.found)

    def __str__(self) -> str:
        return results.render_largest(self.found, Style())

    def __repr__(self) -> str:
        return f"<Largest {self.found.name} {self.value}>"


@dataclass(frozen=True)
class Sweep(_Printed):
    """A plan of every point of a grid. It prints as `planner sweep` does."""

    found: sweeping.Sweep

    @property
    def points(self) -> tuple[sweeping.Point, ...]:
        """In the order of the grid: the last axis turns fastest."""
        return tuple(self.found.points)

    def to_dict(self) -> dict[str, Any]:
        """As `planner sweep --format json` prints it (planner.sweep/1)."""
        return results.sweep_to_json(self.found)

    def __str__(self) -> str:
        return results.render_sweep(self.found, Style())

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.found.points)} points>"


def search(
    job: JobSource,
    *,
    axes: Varied = (),
    objective: str = "cost",
    top: int = 10,
    global_batch: int = 0,
    seconds: float = 120.0,
    settings: Mapping[str, Any] | None = None,
    **words: Unpack[JobWords],
) -> Search:
    """Find the layouts and settings that fit: `planner.search("meta-llama/Llama-3.1-8B", gpus="16xH100", tp=2)`.

    With `gpus` the layout is free but for degrees among the words; without, all degrees of the job's GPUs are varied.
    `axes` restrict or add, `objective` is cost, memory or headroom, `global_batch` counts sequences of an optimizer
    step. It ends after `seconds`; interrupted it gives what was found. Raises SpecError.
    """
    wanted = objective_of(objective, "objective")
    if top < 1 or global_batch < 0:
        name, value = ("top", top) if top < 1 else ("global_batch", global_batch)
        raise SpecError(f"{name} is {value}", allowed="a whole number from 1", place=name)
    gpus = str(words.get("gpus", ""))
    degrees: list[str] = []
    if gpus:
        words, degrees = _free(words)
    request = SearchRequest(
        job=read_job(job, settings, **_on_gpu(words, axes)).job, gpus=gpus, axes=(*degrees, *written_axes(axes)),
        objective=wanted, top=top, global_batch=global_batch, seconds=_positive(seconds),
    )  # fmt: skip
    space = request.space()
    with _planning(seconds) as (plans, progress):
        return Search(
            engine.search(space, plans, objective=wanted, top=top, until=time.monotonic() + seconds, progress=progress)
        )


def largest(
    job: JobSource,
    axis: str,
    *,
    step: int = 0,
    seconds: float = 120.0,
    settings: Mapping[str, Any] | None = None,
    **words: Unpack[JobWords],
) -> Largest:
    """Find the largest `micro_batch_size` or `sequence_length` with which a job fits, everything else as it is.

    Sizes are multiples of `step`. Arguments and errors are those of `planner.plan`.
    """
    name = extremes.size_named(axis)
    if step < 0:
        raise SpecError(f"step is {step}", allowed="a whole number from 1", place="step")
    given = read_job(job, settings, **words).job
    with _planning(_positive(seconds)) as (plans, progress):
        result = extremes.largest(given, name, plans, step=step, progress=progress)
    return Largest(result, extremes.with_size(given, name, result.value) if result.value else given)


def sweep(
    job: JobSource,
    axes: Varied,
    *,
    seconds: float = 600.0,
    settings: Mapping[str, Any] | None = None,
    **words: Unpack[JobWords],
) -> Sweep:
    """Plan every point of a grid: `planner.sweep(job, {"micro_batch_size": "1..16", "sequence_length": "2k..8k:x2"})`.

    Arguments and errors are those of `planner.plan`; SpecError for more than 2,000 points.
    """
    varied = axes_of(written_axes(axes), sweeping.STEP)
    if not varied:
        raise SpecError("nothing is varied", allowed='axes with their values: {"micro_batch_size": [1, 2, 4]}')
    space = Space.varying(read_job(job, settings, **_on_gpu(words, axes)).job, varied)
    with _planning(_positive(seconds)) as (plans, progress):
        return Sweep(sweeping.sweep(space, plans, progress))


def _on_gpu(words: JobWords, axes: Varied) -> JobWords:
    """The words with the GPU of the job that the axes vary. Raises SpecError."""
    varied = axes_of(written_axes(axes))
    gpu = gpu_of_base(varied, str(words.get("gpus") or ""), str(words.get("gpu") or ""))
    return words | {"gpu": gpu} if gpu else words


def _free(words: JobWords) -> tuple[JobWords, list[str]]:
    """The words without GPUs and degrees, and the degrees as axes; the GPU that is named stays. Raises SpecError."""
    left: Any = {name: value for name, value in words.items() if name not in ("gpus", *DEGREE_WORDS)}
    named = read_gpus(str(words["gpus"]), [str(words["gpu"])] if words.get("gpu") else []).name
    return left | ({"gpu": named} if named else {}), axes_of_degrees({word: words.get(word) for word in DEGREE_WORDS})


def _positive(seconds: float) -> float:
    if not 0 < seconds < 1e9:
        raise SpecError(f"in {seconds:g} seconds nothing can be planned", allowed="more than 0", place="seconds")
    return seconds


@contextmanager
def _planning(seconds: float) -> Iterator[tuple[ExactPlans, Callable[[str], None]]]:
    """Plans are made in children of the process that the Python API has for it."""
    with show_progress() as progress:
        progress("loading PyTorch")
        source = TraceSource(cache=TraceCache.of_user())
        deadline = time.monotonic() + seconds
        with ExactPlans(usable(), source=source, deadline=deadline) as plans:
            yield plans, progress

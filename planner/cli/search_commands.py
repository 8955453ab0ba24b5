"""`planner search`, `max`, `min` and `sweep`: which layouts and sizes of a job fit."""

from __future__ import annotations

import argparse
import copy
import csv
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from planner.cli.job_input import job_of, say
from planner.cli.options import (
    DONE,
    EXCEEDS,
    INTERRUPTED,
    REST,
    add_command,
    add_format,
    job_options,
    print_answer,
    style,
    tracing_options,
)
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.progress import ProgressLine
    from planner.searching.engine import SearchResult
    from planner.searching.exact_plans import ExactPlans
    from planner.searching.requests import SearchRequest


def _add_time(parser: argparse.ArgumentParser, usual: float) -> None:
    parser.add_argument(
        "--time", type=float, default=usual, metavar="SECONDS", help="end after so long (default: %(default)g)"
    )


def _request(arguments: argparse.Namespace, axes: Sequence[str] = (), **more: Any) -> SearchRequest:
    """The job, on as many GPUs as were asked for; degrees beside --gpus fix axes. Raises SpecError."""
    from planner.searching.axes import split_values
    from planner.searching.requests import (
        DEGREE_WORDS,
        SearchRequest,
        axes_of,
        axes_of_degrees,
        gpu_of_base,
        read_gpus,
    )

    names = tuple(name.strip() for name in split_values(arguments.gpu) if name.strip())
    given = _with(arguments, gpu=gpu_of_base(axes_of(axes), arguments.gpus, names[0] if names else ""))
    degrees: dict[str, object] = {}
    if arguments.gpus:
        for word in DEGREE_WORDS:
            degrees[word] = True if (written := getattr(arguments, word)) == REST else written
            if isinstance(written, str) and written != REST and not (written.isdecimal() and int(written[:9]) > 0):
                raise SpecError(f"the degree is {written[:80]!a}", allowed="a whole number from 1", place=f"--{word}")
        named = read_gpus(arguments.gpus, names, _option).name
        given = _with(given, gpus="", gpu=named or given.gpu, **dict.fromkeys(DEGREE_WORDS))
    batch: int | None = arguments.global_batch
    if batch is not None and batch < 1:
        raise SpecError(f"the global batch is {batch}", allowed="a whole number from 1", place="--global-batch")
    return SearchRequest(
        job=job_of(given), gpus=arguments.gpus, gpu=names, axes=(*axes_of_degrees(degrees), *axes),
        global_batch=batch or 0, **more,
    )  # fmt: skip


def _option(name: str) -> str:
    return f"--{name}"


def _with(arguments: argparse.Namespace, **values: object) -> argparse.Namespace:
    changed = copy.copy(arguments)
    vars(changed).update(values)
    return changed


def _shift_words(arguments: argparse.Namespace) -> None:
    """Tells the job from the axes, whichever stands first."""
    words = [word for word in (arguments.job, *arguments.axes) if word is not None]
    job = next((word for word in words if not _is_axis(word)), None)
    if job is not None:
        words.remove(job)
    arguments.job, arguments.axes = job, words


def _is_axis(word: str) -> bool:
    from planner.job.hf_config import looks_like_path
    from planner.searching.axes import known_name

    if os.path.exists(word) or looks_like_path(word):
        return False
    try:
        return word == "gpus" or "=" in word or bool(known_name(word))
    except SpecError:
        return False


def _one_axis(arguments: argparse.Namespace, allowed: str) -> str:
    words: list[str] = arguments.axes
    if len(words) != 1:
        raise SpecError(
            f"planner {arguments.name} takes one axis, and {len(words)} are given",
            allowed=allowed,
            remedy=f"planner {arguments.name} {arguments.job or 'JOB'} {allowed.split(',')[0]}",
        )
    return words[0]


def _seconds_of(arguments: argparse.Namespace) -> float:
    seconds: float = arguments.time
    if not 0 < seconds < 1e9:
        raise SpecError(
            f"in {seconds:g} seconds nothing can be planned",
            allowed="more than 0 seconds",
            remedy="write --time 60; the first plan takes about 5",
            place="--time",
        )
    return seconds


@contextmanager
def _planning(arguments: argparse.Namespace, seconds: float) -> Iterator[tuple[ExactPlans, ProgressLine]]:
    """Processes that plan until the time is over, and a line that says how far they are."""
    from planner.planning.preload import usable
    from planner.planning.trace_source import TraceCache, TraceSource
    from planner.progress import show_progress
    from planner.searching.exact_plans import ExactPlans

    source = TraceSource(cache=None if arguments.no_cache else TraceCache.of_user())
    with show_progress() as progress:
        progress("loading PyTorch")
        with ExactPlans(usable(), source=source, deadline=time.monotonic() + seconds) as plans:
            yield plans, progress


def _show(progress: ProgressLine, lines: Iterable[str]) -> None:
    """What is known so far, on standard error."""
    for line in lines:
        progress.clear()
        print(line, file=sys.stderr, flush=True)


def _ending(stopped: str, *, found: bool) -> int:
    if stopped == "interrupted":
        return INTERRUPTED
    return DONE if found else EXCEEDS


def add_search(commands: Commands) -> None:
    """Adds the parser of `planner search`."""
    parser = add_command(
        commands, "search", run_search, tracing_options(), job_options(),
        help="find the layouts and settings of a job that fit, the best first",
        description="Varies how a job is laid out over its GPUs and settings that leave the training as it is, ranks"
        " what fits, and proves each by a plan. Axes may be restricted or added: recompute=none,full tp=1..8"
        " (docs/search.md). Ends with 0 if something fits, 3 if nothing is known to.",
    )  # fmt: skip
    parser.add_argument("axes", nargs="*", metavar="AXIS=VALUES", help="1,2,4; 1..64 doubles; 1..64:8 steps")
    parser.add_argument("--objective", default="cost", metavar="NAME", help="cost (default), memory or headroom")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences of an optimizer step (default: kept)")
    _add_time(parser, 120.0)
    add_format(parser)


def run_search(arguments: argparse.Namespace) -> int:
    """`planner search`: 0, 3, 130 if it was interrupted, or what reading raises."""
    from planner.searching.engine import search
    from planner.searching.results import render_search, row_lines, search_to_json
    from planner.searching.weighing import objective_of

    _shift_words(arguments)
    seconds, objective = _seconds_of(arguments), objective_of(arguments.objective)
    if arguments.top < 1:
        raise SpecError(f"--top is {arguments.top}", allowed="a whole number from 1", place="--top")
    space = _request(arguments, arguments.axes, objective=objective).space(_option)
    with _planning(arguments, seconds) as (plans, progress):

        def note(sentence: str) -> None:
            progress.clear()
            say(f"note: {sentence}")

        shown: set[int] = set()

        def show_news(result: SearchResult) -> None:
            news = [row for row in result.rows if row.candidate.index not in shown]
            shown.update(row.candidate.index for row in news)
            _show(progress, (line for row in news for line in row_lines(row, style(sys.stderr))))

        result = search(
            space, plans, objective=objective, top=arguments.top, until=time.monotonic() + seconds, progress=progress,
            watch=show_news, note=note,
        )  # fmt: skip
    print_answer(arguments, lambda: search_to_json(result), lambda: render_search(result, style()))
    return _ending(result.stopped, found=bool(result.rows))


def add_extremes(commands: Commands) -> None:
    """Adds the parsers of `planner max` and `planner min`."""
    largest = add_command(
        commands, "max", run_max, tracing_options(), job_options(),
        help="find the largest micro_batch_size or sequence_length that fits",
        description="Finds the largest size with which a job fits, everything else as it is; it and its neighbour are"
        " planned. Ends with 0, or 3 if not even the smallest fits.",
    )  # fmt: skip
    largest.add_argument("axes", nargs="*", metavar="AXIS", help="micro_batch_size or sequence_length")
    largest.add_argument("--step", type=int, default=0, metavar="N", help="sizes are multiples of it")
    fewest = add_command(
        commands, "min", run_min, tracing_options(), job_options(),
        help="find the fewest GPUs on which a job fits in some layout",
        description="Tries numbers of GPUs from one on, each in every layout, with and without recomputation and with"
        " smaller micro-batches; the global batch stays. Ends with 0, or 3 if none is enough.",
    )  # fmt: skip
    fewest.add_argument("axes", nargs="*", metavar="AXIS", help="gpus, which may be left out")
    fewest.add_argument("--most", type=int, default=1024, metavar="N", help="GPUs to try (default: %(default)s)")
    fewest.add_argument("--global-batch", type=int, metavar="N", help="sequences of an optimizer step (default: kept)")
    for parser in (largest, fewest):
        _add_time(parser, 120.0)
        add_format(parser)


def run_max(arguments: argparse.Namespace) -> int:
    """`planner max`: 0, 3, 130 if it was interrupted, or what reading and planning raise."""
    from planner.searching.extremes import largest, size_named
    from planner.searching.results import largest_to_json, render_largest

    _shift_words(arguments)
    name = size_named(_one_axis(arguments, "micro_batch_size, sequence_length"))
    if arguments.step < 0:
        raise SpecError(f"--step is {arguments.step}", allowed="a whole number from 1", place="--step")
    seconds, job = _seconds_of(arguments), job_of(arguments)
    with _planning(arguments, seconds) as (plans, progress):
        result = largest(job, name, plans, step=arguments.step, progress=progress)
    print_answer(arguments, lambda: largest_to_json(result), lambda: render_largest(result, style()))
    return _ending(result.stopped, found=bool(result.value))


def run_min(arguments: argparse.Namespace) -> int:
    """`planner min`: 0, 3, 130 if it was interrupted, or what reading raises."""
    from planner.job.nodes import did_you_mean
    from planner.searching.extremes import fewest
    from planner.searching.results import fewest_to_json, render_fewest

    _shift_words(arguments)
    arguments.axes = arguments.axes or ["gpus"]
    word = _one_axis(arguments, "gpus")
    if word != "gpus":
        raise SpecError(
            f"planner min does not know {word[:80]!a}", allowed="gpus",
            remedy="planner sweep JOB gpu=all plans every GPU and MIG slice" if word == "gpu"
            else did_you_mean(word, ["gpus"]) or "planner search --objective memory finds the least memory",
        )  # fmt: skip
    if arguments.most < 1:
        raise SpecError(f"--most is {arguments.most}", allowed="a whole number from 1", place="--most")
    seconds, placed = _seconds_of(arguments), _request(arguments).placed(_option)
    with _planning(arguments, seconds) as (plans, progress):
        result = fewest(
            placed.job, plans, global_batch=placed.global_batch,
            per_node=placed.per_node if placed.gpus > 1 else 8,
            most=arguments.most, deadline=time.monotonic() + seconds, progress=progress,
        )  # fmt: skip
    print_answer(arguments, lambda: fewest_to_json(result), lambda: render_fewest(result, style()))
    return _ending(result.stopped, found=bool(result.gpus))


def add_sweep(commands: Commands) -> None:
    """Adds the parser of `planner sweep`."""
    parser = add_command(
        commands, "sweep", run_sweep, tracing_options(), job_options(),
        help="plan every point of a grid, such as micro_batch_size=1..8 sequence_length=2k..64k:x2",
        description="Plans every point of a grid, everything else as the job says it. 1..8 are eight, 1..64:8 takes"
        " steps, 1..64:x2 doubles; gpu=all are all GPUs and MIG slices. Ends with 0, whatever fits.",
    )  # fmt: skip
    parser.add_argument("axes", nargs="*", metavar="AXIS=VALUES", help="micro_batch_size=1..8")
    _add_time(parser, 600.0)
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="csv has a line a point")


def run_sweep(arguments: argparse.Namespace) -> int:
    """`planner sweep`: 0, 130 if it was interrupted, or what reading raises."""
    from planner.searching.requests import axes_of, gpu_of_base
    from planner.searching.results import csv_of, render_sweep, sweep_to_json
    from planner.searching.space import Space
    from planner.searching.sweeping import STEP, sweep

    _shift_words(arguments)
    axes = axes_of(arguments.axes, STEP)
    if not axes:
        raise SpecError(
            "nothing is varied",
            allowed="one axis or several: micro_batch_size=1..8 sequence_length=2k..64k:x2",
            remedy=f"planner sweep {arguments.job or 'JOB'} micro_batch_size=1..8",
        )
    seconds = _seconds_of(arguments)
    given = _with(arguments, gpu=gpu_of_base(axes, arguments.gpus, arguments.gpu))
    space = Space.varying(job_of(given), axes)
    with _planning(arguments, seconds) as (plans, progress):
        result = sweep(space, plans, progress)
    if arguments.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_of(result))
    else:
        print_answer(arguments, lambda: sweep_to_json(result), lambda: render_sweep(result, style()))
    return _ending(result.stopped, found=True)

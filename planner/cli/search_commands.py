"""`planner search`, `max`, `min` and `sweep`: which layouts and sizes of a job fit."""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cli.job_input import job_of, say
from planner.cli.options import DONE, EXCEEDS, INTERRUPTED, common_options, job_options, style, tracing_options
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.job.schema import Job
    from planner.progress import ProgressLine
    from planner.searching.axes import Axis
    from planner.searching.exact_processes import ExactPlans


DEGREES = {"dp_shard": "fsdp", "dp_replicate": "ddp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep"}
"""Axes of parallelism by the options that say their degree."""
_REST = "rest"


def time_option(parser: argparse.ArgumentParser, usual: float) -> None:
    """Adds --time."""
    parser.add_argument(
        "--time", type=float, default=usual, metavar="SECONDS", help="end after so long (default: %(default)g)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job whose layout is left to the search."""

    job: Job
    gpus: int
    per_node: int
    global_batch: int
    fixed: dict[str, Sequence[int]]
    """Degrees that were said."""
    gpu_names: tuple[str, ...] = ()
    """Several, where the search compares them."""


def asked_of(arguments: argparse.Namespace) -> Asked:
    """The job, on as many GPUs as were asked for; degrees beside --gpus fix axes. Raises SpecError."""
    from planner.job import named_gpus
    from planner.searching.axes import split_values
    from planner.searching.space import global_batch_of

    names = tuple(each.strip() for each in split_values(arguments.gpu) if each.strip())
    if not arguments.gpus:
        job = job_of(_with(arguments, gpu=names[0] if names else ""))
        gpus, per_node = job.cluster.nodes * job.cluster.gpus_per_node, job.cluster.gpus_per_node
        return Asked(
            job=job, gpus=gpus, per_node=per_node, fixed={}, gpu_names=names,
            global_batch=_batch(arguments, global_batch_of(job)),
        )  # fmt: skip
    count = named_gpus.parse(arguments.gpus)
    if count.name and names:
        raise SpecError(
            f"--gpus names {count.name}, and --gpu {arguments.gpu}", allowed="one of the two", place="--gpu"
        )
    free = dict.fromkeys(DEGREES.values())
    job = job_of(_with(arguments, gpus="", gpu=count.name or (names[0] if names else ""), **free))
    gpus = count.nodes * count.gpus_per_node
    stated = global_batch_of(job)
    alone = job.cluster.nodes * job.cluster.gpus_per_node == 1
    return Asked(
        job=job,
        gpus=gpus,
        per_node=count.gpus_per_node,
        global_batch=_batch(arguments, stated * gpus if alone else stated),
        fixed=_fixed(arguments),
        gpu_names=names,
    )


def _batch(arguments: argparse.Namespace, stated: int) -> int:
    asked: int | None = getattr(arguments, "global_batch", None)
    if asked is not None and asked < 1:
        raise SpecError(f"the global batch is {asked}", allowed="a whole number from 1", place="--global-batch")
    return stated if asked is None else asked


def _with(arguments: argparse.Namespace, **values: object) -> argparse.Namespace:
    changed = copy.copy(arguments)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


def _fixed(arguments: argparse.Namespace) -> dict[str, Sequence[int]]:
    """--tp 8 fixes an axis; --fsdp without a number leaves dp_replicate no ranks, --ddp dp_shard."""
    found: dict[str, Sequence[int]] = {}
    for axis, option in DEGREES.items():
        written = getattr(arguments, option)
        if written == _REST:
            found[{"dp_shard": "dp_replicate", "dp_replicate": "dp_shard"}[axis]] = (1,)
        elif written is not None:
            if not written.isdecimal() or not int(written[:9]) > 0:
                raise SpecError(f"the degree is {written[:80]!a}", allowed="a whole number from 1", place=f"--{option}")
            found[axis] = (int(written),)
    return found


def axes_of(arguments: argparse.Namespace) -> list[Axis]:
    """The axes that were written, each once. Raises SpecError."""
    from planner.searching import requests

    return requests.axes_of(arguments.axes)


def shift_words(arguments: argparse.Namespace) -> None:
    """Tells the job from the axes, whichever stands first; where another program's file says the job, all are axes."""
    from planner.cli.job_input import has_sources

    words = [word for word in (arguments.job, *arguments.axes) if word is not None]
    job = None if has_sources(arguments) else next((word for word in words if not _is_axis(word)), None)
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


def seconds_of(arguments: argparse.Namespace) -> float:
    """The time budget. Raises SpecError for none."""
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
def planning(arguments: argparse.Namespace, seconds: float) -> Iterator[tuple[ExactPlans, ProgressLine]]:
    """Processes that plan until the time is over, and a line that says how far they are."""
    import time

    from planner.planning.child_processes import usable
    from planner.planning.trace_source import TraceCache, TraceSource
    from planner.progress import show_progress
    from planner.searching.exact_processes import ExactPlans

    source = TraceSource(cache=None if arguments.no_cache else TraceCache.of_user())
    with show_progress() as progress:
        progress("loading PyTorch")
        with ExactPlans(usable(), source=source, deadline=time.monotonic() + seconds) as plans:
            yield plans, progress


_SEARCH_SECONDS = 120.0


def add_search(commands: Commands) -> None:
    """Adds the parser of `planner search`."""
    parser = commands.add_parser(
        "search",
        parents=[common_options(), tracing_options(), job_options()],
        help="find the layouts and settings of a job that fit, the best first",
        description="Varies how a job is laid out over its GPUs and settings that leave the training as it is, ranks"
        " what fits, and proves each by a plan. Axes may be restricted or added: recompute=none,full tp=1..8"
        " (docs/search.md). Ends with 0 if something fits, 3 if nothing is known to.",
    )
    parser.add_argument("axes", nargs="*", metavar="AXIS=VALUES", help="1,2,4; 1..64 doubles; 1..64:8 steps")
    parser.add_argument("--objective", default="cost", metavar="NAME", help="cost (default), memory or headroom")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences of an optimizer step (default: kept)")
    time_option(parser, _SEARCH_SECONDS)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_search, name="search")


def run_search(arguments: argparse.Namespace) -> int:
    """`planner search`: 0, 3, 130 if it was interrupted, or what reading raises."""
    from planner.searching.engine import search
    from planner.searching.requests import space_of
    from planner.searching.results import render_search, search_to_json
    from planner.searching.weighing import objective_of, refuse_inapplicable

    shift_words(arguments)
    seconds, objective = seconds_of(arguments), objective_of(arguments.objective)
    if arguments.top < 1:
        raise SpecError(f"--top is {arguments.top}", allowed="a whole number from 1", place="--top")
    asked = asked_of(arguments)
    refuse_inapplicable(objective, asked.job)
    space = space_of(
        asked.job, gpus=asked.gpus, per_node=asked.per_node, global_batch=asked.global_batch, fixed=asked.fixed,
        gpu_names=asked.gpu_names, written=axes_of(arguments),
    )  # fmt: skip
    with planning(arguments, seconds) as (plans, progress):

        def note(said: str) -> None:
            progress.clear()
            say(f"note: {said}")

        found = search(
            space, plans, objective=objective, top=arguments.top, time_left=seconds, progress=progress,
            note=note,
        )  # fmt: skip
    if arguments.format == "json":
        print(json.dumps(search_to_json(found), indent=2))
    else:
        print(render_search(found, style()), end="")
    if found.stopped == "interrupted":
        return INTERRUPTED
    return DONE if found.rows else EXCEEDS


_EXTREMES_SECONDS = 120.0


def add_extremes(commands: Commands) -> None:
    """Adds the parsers of `planner max` and `planner min`."""
    largest = commands.add_parser(
        "max",
        parents=[common_options(), tracing_options(), job_options()],
        help="find the largest micro_batch_size or sequence_length that fits",
        description="Finds the largest size with which a job fits, everything else as it is; it and its neighbour are"
        " planned. Ends with 0, or 3 if not even the smallest fits.",
    )
    largest.add_argument("axes", nargs="*", metavar="AXIS", help="micro_batch_size or sequence_length")
    largest.add_argument("--step", type=int, default=0, metavar="N", help="sizes are multiples of it")
    _add_ending(largest)
    largest.set_defaults(run=run_max, name="max")
    fewest = commands.add_parser(
        "min",
        parents=[common_options(), tracing_options(), job_options()],
        help="find the fewest GPUs on which a job fits in some layout",
        description="Tries numbers of GPUs from one on, each in every layout, with and without recomputation and with"
        " smaller micro-batches; the global batch stays. Ends with 0, or 3 if none is enough.",
    )
    fewest.add_argument("axes", nargs="*", metavar="AXIS", help="gpus, which may be left out")
    fewest.add_argument("--most", type=int, default=1024, metavar="N", help="GPUs to try (default: %(default)s)")
    fewest.add_argument("--global-batch", type=int, metavar="N", help="sequences of an optimizer step (default: kept)")
    _add_ending(fewest)
    fewest.set_defaults(run=run_min, name="min")


def _add_ending(parser: argparse.ArgumentParser) -> None:
    time_option(parser, _EXTREMES_SECONDS)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")


def run_max(arguments: argparse.Namespace) -> int:
    """`planner max`: 0, 3, 130 if it was interrupted, or what reading and planning raise."""
    from planner.searching.extremes import largest, size_named
    from planner.searching.results import largest_to_json, render_largest

    shift_words(arguments)
    name = size_named(_one_word(arguments, "micro_batch_size, sequence_length"))
    if arguments.step < 0:
        raise SpecError(f"--step is {arguments.step}", allowed="a whole number from 1", place="--step")
    seconds, job = seconds_of(arguments), job_of(arguments)
    with planning(arguments, seconds) as (plans, progress):
        found = largest(job, name, plans, step=arguments.step, progress=progress)
    _print(arguments, largest_to_json(found), render_largest(found, style()))
    if found.stopped == "interrupted":
        return INTERRUPTED
    return DONE if found.value else EXCEEDS


def run_min(arguments: argparse.Namespace) -> int:
    """`planner min`: 0, 3, 130 if it was interrupted, or what reading raises."""
    from planner.job.nodes import did_you_mean
    from planner.searching.extremes import fewest
    from planner.searching.results import fewest_to_json, render_fewest

    shift_words(arguments)
    arguments.axes = arguments.axes or ["gpus"]
    word = _one_word(arguments, "gpus")
    if word != "gpus":
        raise SpecError(
            f"planner min does not know {word[:80]!a}", allowed="gpus",
            remedy=did_you_mean(word, ["gpus"]) or "planner search --objective memory finds the least memory",
        )  # fmt: skip
    if arguments.most < 1:
        raise SpecError(f"--most is {arguments.most}", allowed="a whole number from 1", place="--most")
    seconds, asked = seconds_of(arguments), asked_of(arguments)
    per_node = asked.per_node if asked.gpus > 1 else 8
    with planning(arguments, seconds) as (plans, progress):
        found = fewest(
            asked.job, plans, global_batch=asked.global_batch, per_node=per_node, most=arguments.most,
            deadline=time.monotonic() + seconds, progress=progress,
        )  # fmt: skip
    _print(arguments, fewest_to_json(found), render_fewest(found, style()))
    if found.stopped == "interrupted":
        return INTERRUPTED
    return DONE if found.gpus else EXCEEDS


def _one_word(arguments: argparse.Namespace, allowed: str) -> str:
    words: list[str] = arguments.axes
    if len(words) != 1:
        raise SpecError(
            f"planner {arguments.name} takes one axis, and {len(words)} are given",
            allowed=allowed,
            remedy=f"planner {arguments.name} {arguments.job or 'JOB'} {allowed.split(',')[0]}",
        )
    return words[0]


def _print(arguments: argparse.Namespace, document: dict[str, object], text: str) -> None:
    print(json.dumps(document, indent=2) if arguments.format == "json" else text.rstrip("\n"))


_SWEEP_SECONDS = 600.0


def add_sweep(commands: Commands) -> None:
    """Adds the parser of `planner sweep`."""
    parser = commands.add_parser(
        "sweep",
        parents=[common_options(), tracing_options(), job_options()],
        help="plan every point of a grid, such as micro_batch_size=1..64 sequence_length=2k..64k",
        description="Plans every point of a grid, everything else as the job says it. 1..64 doubles, 1..64:8 takes"
        " steps. Ends with 0, whatever fits.",
    )
    parser.add_argument("axes", nargs="*", metavar="AXIS=VALUES", help="micro_batch_size=1..64")
    time_option(parser, _SWEEP_SECONDS)
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="csv has a line a point")
    parser.set_defaults(run=run_sweep, name="sweep")


def run_sweep(arguments: argparse.Namespace) -> int:
    """`planner sweep`: 0, 130 if it was interrupted, or what reading raises."""
    from planner.searching.results import csv_of, render_sweep, sweep_to_json
    from planner.searching.space import Space
    from planner.searching.sweeping import sweep

    shift_words(arguments)
    axes = axes_of(arguments)
    if not axes:
        raise SpecError(
            "nothing is varied",
            allowed="one axis or several: micro_batch_size=1..64 sequence_length=2k..64k",
            remedy=f"planner sweep {arguments.job or 'JOB'} micro_batch_size=1..8",
        )
    seconds = seconds_of(arguments)
    space = Space(base=job_of(arguments), axes=tuple(axes))
    with planning(arguments, seconds) as (plans, progress):
        found = sweep(space, plans, progress)
    if arguments.format == "json":
        print(json.dumps(sweep_to_json(found), indent=2))
    elif arguments.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_of(found))
    else:
        print(render_sweep(found, style()), end="")
    return INTERRUPTED if found.stopped == "interrupted" else DONE

"""What the commands that search are asked: the job, the GPUs, the axes and the time."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cli.job_input import job_of
from planner.errors import SpecError

if TYPE_CHECKING:
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
    from planner.job import gpu_counts
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
    count = gpu_counts.parse(arguments.gpus)
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
    from planner.planning.trace_cache import TraceCache
    from planner.planning.trace_source import TraceSource
    from planner.progress import show_progress
    from planner.searching.exact_processes import ExactPlans

    source = TraceSource(cache=None if arguments.no_cache else TraceCache.of_user())
    with show_progress() as progress:
        progress("loading PyTorch")
        with ExactPlans(usable(), source=source, deadline=time.monotonic() + seconds) as plans:
            yield plans, progress

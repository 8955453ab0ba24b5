"""`planner max` and `planner min`: the largest size that fits, and the fewest GPUs."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, EXCEEDS, INTERRUPTED
from planner.cli.job_input import job_of
from planner.cli.job_options import job_options
from planner.cli.options import common_options, tracing_options
from planner.cli.search_input import asked_of, planning, seconds_of, shift_words, time_option
from planner.cli.terminal import style
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cli.options import Commands

_TIME = 120.0


def add(commands: Commands) -> None:
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
    time_option(parser, _TIME)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")


def run_max(arguments: argparse.Namespace) -> int:
    """`planner max`: 0, 3, 130 if it was interrupted, or what reading and planning raise."""
    from planner.searching.documents import largest_to_json
    from planner.searching.extremes import largest, size_named
    from planner.searching.text import render_largest

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
    from planner.job.nearest import did_you_mean
    from planner.searching.documents import fewest_to_json
    from planner.searching.fewest import fewest
    from planner.searching.text import render_fewest

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

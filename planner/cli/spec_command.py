"""`planner spec`: a job spec with every default filled in, also out of the files of other programs."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, WRONG_INPUT
from planner.cli.options import common_options

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.importers.job_import import ImportedJob


def add(commands: Commands) -> None:
    """Adds the parser of `planner spec`."""
    parser = commands.add_parser(
        "spec",
        parents=[common_options()],
        help="print a job spec with every default filled in, also out of what you already have",
        description="Checks a job spec and prints it with every default filled in. With --from-..., makes it out of"
        " the files of other programs; JOB then says what they cannot, and need not be complete.",
    )
    parser.add_argument("job", type=Path, nargs="?", metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--bundle", action="store_true", help="print one self-contained JSON object instead")
    sources = parser.add_argument_group("out of what you already have (docs/importers.md)")
    sources.add_argument("--from-training-arguments", type=Path, metavar="ARGS.json", help="of transformers")
    sources.add_argument("--from-accelerate", type=Path, metavar="CONFIG.yaml", help="as `accelerate config` writes it")
    sources.add_argument("--from-deepspeed", type=Path, metavar="DS.json", help="a ds_config.json")
    sources.add_argument("--from-torchrun", default="", metavar="LINE", help="'torchrun ... train.py ...', in quotes")
    sources.add_argument("--model", type=Path, metavar="CONFIG.json", help="the model's config, of transformers")
    sources.add_argument("--gpu", default="", metavar="NAME", help="such as H100-SXM-80GB")
    sources.add_argument("--sequence-length", type=int, metavar="N", help="tokens of a sequence")
    parser.set_defaults(run=run, usage=parser.format_usage())


def run(arguments: argparse.Namespace) -> int:
    """`planner spec`: 0, or SpecError."""
    from planner.job.bundle import bundle_text
    from planner.job.loading import load_job
    from planner.job.printing import job_yaml

    if _adopts(arguments):
        adopted = _import_job(arguments)
        _tell(adopted)
        job = adopted.job
    elif problem := _usage_problem(arguments):
        print(f"{arguments.usage}planner spec: error: {problem}", file=sys.stderr)
        return WRONG_INPUT
    else:
        job = load_job(arguments.job)
    print(bundle_text(job) if arguments.bundle else job_yaml(job), end="")
    return DONE


def _adopts(arguments: argparse.Namespace) -> bool:
    given = (arguments.from_training_arguments, arguments.from_accelerate, arguments.from_deepspeed)
    return any(each is not None for each in given) or bool(arguments.from_torchrun)


def _usage_problem(arguments: argparse.Namespace) -> str:
    if arguments.model or arguments.gpu or arguments.sequence_length is not None:
        return "--model, --gpu and --sequence-length go with --from-...; a spec says these itself"
    return "" if arguments.job is not None else "give JOB, or --from-..."


def _import_job(arguments: argparse.Namespace) -> ImportedJob:
    from planner.importers.job_import import ImportSources, import_job

    given = ImportSources(
        training_arguments=arguments.from_training_arguments,
        accelerate=arguments.from_accelerate,
        deepspeed=arguments.from_deepspeed,
        torchrun=arguments.from_torchrun,
        job=arguments.job,
        model=arguments.model,
        gpu=arguments.gpu,
        sequence_length=arguments.sequence_length,
    )
    return import_job(given, Path())


def _tell(adopted: ImportedJob) -> None:
    for source, names in adopted.ignored.items():
        _say(f"{source}: without effect on memory: {', '.join(names)}")
    if adopted.not_read:
        _say(f"the launch line: not read: {', '.join(adopted.not_read)}")
    for each in adopted.supposed:
        _say(f"taken: {each}")


def _say(line: str) -> None:
    wrapped = textwrap.fill(line, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(wrapped, file=sys.stderr)

"""What commands share: options, those that name a job, exit codes, and how answers are printed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.report.statement import Plan
    from planner.report.style import Style

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DONE, OUR_FAULT, WRONG_INPUT, EXCEEDS = 0, 1, 2, 3
INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13
"""As shells report a process that SIGINT or SIGPIPE ended."""


def common_options() -> argparse.ArgumentParser:
    """What every command takes, before and after its name."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,  # a default here would undo what stands before the command's name
        help="show where an error comes from (also: PLANNER_DEBUG=1)",
    )
    return options


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *parents: argparse.ArgumentParser,
    **described: str,
) -> argparse.ArgumentParser:
    """Adds the parser of a command: what it takes besides the common options is in `parents`; `described` are `help`,
    `description` and `usage`."""
    parser = commands.add_parser(name, parents=[common_options(), *parents], **described)  # type: ignore[arg-type]
    parser.set_defaults(run=run, name=name)
    return parser


def add_format(parser: argparse.ArgumentParser) -> None:
    """Adds --format."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")


def add_risk(parser: argparse.ArgumentParser) -> None:
    """Adds --risk."""
    parser.add_argument(
        "--risk", metavar="SHARE",
        help="judge by what this share of jobs of the kind exceeds, as 1%% (default: 5%%, the interval's upper end); a"
        " job of which larger sizes may come than were seen then ends with 3",
    )  # fmt: skip


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Adds --verbose."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="say where figures come from, and of every rank class what is said of the fullest",
    )


def at_risk(arguments: argparse.Namespace, plan: Plan) -> Plan:
    """The plan as --risk has it judged; raises PlannerError for one that is not a share."""
    if arguments.risk is None:
        return plan
    from planner.truth.calibration.recorded_errors import judge_at_risk, parse_risk

    return judge_at_risk(plan, parse_risk(arguments.risk, "--risk"))


def print_answer(arguments: argparse.Namespace, document: Callable[[], Any], text: Callable[[], str]) -> None:
    """The answer as --format asks for it."""
    if arguments.format == "json":
        print(json.dumps(document(), indent=2))
    else:
        print(text().rstrip("\n"))


def print_plan(arguments: argparse.Namespace, plan: Plan) -> int:
    """The whole plan as --format and --verbose ask for it; its exit code."""
    from planner.report.plan_text import render
    from planner.report.statement import to_json

    print_answer(arguments, lambda: to_json(plan), lambda: render(plan, style(), verbose=arguments.verbose))
    return exit_code(arguments, plan)


def exit_code(arguments: argparse.Namespace, plan: Plan) -> int:
    """What a verdict ends with; a tight one is said on standard error. Where its figures are a lower bound nobody knows
    with what risk it fits: who names a risk gets the code of what does not fit."""
    from planner.report.verdict_text import is_lower_bound

    if plan.verdict != "tight":
        return EXCEEDS if plan.verdict == "exceeds" else DONE
    if not is_lower_bound(plan):
        print("warning: it fits only narrowly (tight)", file=sys.stderr)
        return DONE
    asked = "" if arguments.risk is None else f"; with --risk {arguments.risk} that does not fit"
    print(f"warning: it may not fit (tight): sizes vary or grow, and larger ones were not seen{asked}", file=sys.stderr)
    return DONE if arguments.risk is None else EXCEEDS


def write_file(path: Path, write: Callable[[], object]) -> None:
    """Calls `write`; raises PlannerError where the file cannot be written."""
    try:
        write()
    except OSError as error:
        raise PlannerError(f"cannot write: {error.strerror}", place=str(path)) from error


def style(stream: TextIO | None = None) -> Style:
    """Width, colours and characters of the terminal, or of a file, that a stream (default: standard output) is."""
    from planner.report.style import style_of

    return style_of(stream or sys.stdout, os.environ, shutil.get_terminal_size((100, 24)).columns)


def tracing_options() -> argparse.ArgumentParser:
    """What every command takes that may trace a job."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--no-cache",
        action="store_true",
        help="trace anew, and keep nothing (traces are kept in $XDG_CACHE_HOME/planner/traces, or in PLANNER_CACHE)",
    )
    return options


REST = "rest"


def job_argument(*, needed: bool = True) -> argparse.ArgumentParser:
    """JOB and --set, for commands that take a job as a file says it; JOB may be left out where it is not needed."""
    options = argparse.ArgumentParser(add_help=False)
    described = "a job spec (YAML), a bundle (JSON), or - for standard input"
    options.add_argument("job", nargs=None if needed else "?", metavar="JOB", help=described)
    add_set(options)
    return options


def job_options() -> argparse.ArgumentParser:
    """JOB with all that can stand for a spec: a model's name, words about the training, files of other programs."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="a job spec (YAML), a bundle (JSON), - for standard input; or a model: its name on the hub, its"
        " config.json, its folder, or the folder of an adapter",
    )
    add_set(options)
    _add_words(options.add_argument_group("the job in a few words (with a model, or over what a spec says)"))
    _add_sources(options.add_argument_group("files of transformers, as they are, for its Trainer (docs/importers.md)"))
    return options


def add_set(options: argparse.ArgumentParser) -> None:
    """Adds --set."""
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key of the spec (train.micro_batch_size=4), typed as in YAML; may be given several times",
    )


def _add_words(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpus", default="", metavar="4xH100", help="or 2x8xA100 (nodes, GPUs of a node), or a number")
    group.add_argument(
        "--gpu",
        default="",
        metavar="NAME",
        help="such as H100, 4090, as nvidia-smi says it, or {total_bytes: 9.5GiB, arch: sm_80}",
    )
    group.add_argument("--seq", "--sequence-length", default="", metavar="N", help="tokens of a sequence; 4k is 4096")
    group.add_argument("--batch", "--micro-batch-size", type=int, metavar="N", help="samples of a micro-batch")
    group.add_argument("--accumulate", type=int, metavar="N", help="micro-batches of an optimizer step")
    for kind, what in (("lora", "a LoRA"), ("qlora", "a LoRA beside a model in four bits"), ("dora", "a DoRA")):
        group.add_argument(f"--{kind}", nargs="?", const="", metavar="r=16,alpha=32", help=f"train {what} alone")
    group.add_argument("--fsdp", nargs="?", const=REST, metavar="N", help="shard by FSDP2 over N ranks, or the rest")
    group.add_argument("--ddp", nargs="?", const=REST, metavar="N", help="replicate N times, or over the rest")
    for axis, what in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert")):
        group.add_argument(f"--{axis}", metavar="N", help=f"{what} parallelism")
    group.add_argument("--zero", type=int, metavar="STAGE", help="DeepSpeed's ZeRO (1 to 3)")
    group.add_argument("--precision", default="", metavar="bf16", help="bf16, fp16 or fp32, or as a spec writes it")
    group.add_argument("--optimizer", default="", metavar="NAME", help="of torch.optim, or transformers' name of it")
    group.add_argument(
        "--recompute", "--gradient-checkpointing", nargs="?", const="full", default="", metavar="MODE",
        help="recompute activations: full (also without MODE), selective, or 2 for every second block",
    )  # fmt: skip
    group.add_argument("--offload", action="store_true", help="parameters and optimizer state on the host")


def _add_sources(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--from-training-arguments", type=Path, metavar="ARGS.json", help="trainer.arguments")
    group.add_argument("--from-deepspeed", type=Path, metavar="DS.json", help="trainer.arguments.deepspeed")
    group.add_argument("--from-accelerate", type=Path, metavar="CONFIG.yaml", help="trainer.accelerate")
    group.add_argument(
        "--from-peft", type=Path, metavar="ADAPTER", help="trainer.peft: adapter_config.json, its folder"
    )

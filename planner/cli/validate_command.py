"""`planner validate`: a job's step on the GPUs of this machine, beside its plan."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from planner.cli.exit_codes import DONE, WRONG_INPUT
from planner.cli.job_input import job_of
from planner.cli.job_options import job_argument
from planner.cli.options import common_options
from planner.distribution import refuse_without

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner validate`."""
    parser = commands.add_parser(
        "validate",
        parents=[common_options(), job_argument()],
        help="run a job's step on the GPUs of this machine, beside its plan",
        description="Predicts a job, runs its step through a Ray of its own (or the cluster at RAY_ADDRESS), and sets "
        "the two side by side: the same code as behind POST /v1/validations; nothing is stored.",
    )
    parser.add_argument("--gpu", default="", help="the GPU of this machine, by its name in the catalog, for the job's")
    parser.add_argument("--mode", default="auto", help="auto, absent_peers or real_peers (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--ranks", default="", help="such as 0,8 (default: one of each rank class)")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest that one step may take")
    parser.add_argument("--rehearse", action="store_true", help="pretend the GPUs, and run the step on the CPU")
    parser.add_argument("--format", default="text", choices=("text", "json"), help="json prints one object only")
    parser.set_defaults(run=run_validate, name="validate")


def run_validate(arguments: argparse.Namespace) -> int:
    """`planner validate`: 0 if it was measured, even if memory ran out; 2 if the measurement cannot be believed, or
    PlannerError if there is none."""
    refuse_without(("ray", "torch", "transformers"), extra="service", user="a validation")
    from planner.validation import local
    from planner.validation.request import request_of

    request = request_of(_body(arguments), local.job_on_this_gpu(job_of(arguments, is_traced=False), arguments.gpu))
    result = local.validate(request, seconds=arguments.seconds, rehearsal=arguments.rehearse)
    print(local.format_result(result, as_json=arguments.format == "json"), end="")
    if result.problem:
        print(result.problem, file=sys.stderr)
        return WRONG_INPUT
    return DONE


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"mode": arguments.mode, "device": arguments.device}
    if arguments.ranks:
        parts = arguments.ranks.split(",")
        body["ranks"] = [int(part) if part.strip().isdigit() else part for part in parts]
    return body

"""`planner check`: the verdict in one line, and a command behind it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.job_input import job_of
from planner.cli.options import DONE, EXCEEDS, common_options, job_options, tracing_options
from planner.cli.plan_command import exit_code, plan_job
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.admission.decision import Decision
    from planner.admission.policy import Policy
    from planner.cli.options import Commands
    from planner.job.schema import Job


def add_check(commands: Commands) -> None:
    """Adds the parser of `planner check`."""
    parser = commands.add_parser(
        "check",
        parents=[common_options(), tracing_options(), job_options()],
        help="say in one line whether a job fits, and run a command only if it does",
        usage="planner check [-h] [--server URL] [--run-unchecked] [--policy FILE.ini] [--format text|json]"
        " [options of the job] JOB [-- COMMAND ...]",
        description="Plans a job, here or by a planner service, and prints the verdict in one line. Exit code as for "
        "plan. With a command it runs that command if the job may run; else it ends with 3.",
    )
    parser.add_argument("--server", metavar="URL", help="ask the planner service there; PyTorch is not needed then")
    parser.add_argument(
        "--run-unchecked", action="store_true",
        help="run the command also where the service cannot be reached, unless the operator's file refuses that",
    )  # fmt: skip
    parser.add_argument("--policy", type=Path, metavar="FILE.ini", help="the operator's (default: docs/admission.md)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run, name="check")


def run(arguments: argparse.Namespace) -> int:
    """`planner check`: 0 or 3, or what planning raises; or what the command ends with."""
    if arguments.server is None and not arguments.command and arguments.format == "text":
        return _checked_here(job_of(arguments), cached=not arguments.no_cache)
    from planner.admission import command_hook
    from planner.admission.service_query import binds

    policy = _policy(arguments)
    decision = _decide(arguments, policy)
    as_json = arguments.format == "json"
    if as_json:
        print(json.dumps(decision.to_json(), indent=2))
    if decision.verdict == "unplannable":
        raise PlannerError(decision.reason)
    if not arguments.command:
        if not as_json:
            print(decision.text)
        return EXCEEDS if decision.verdict == "exceeds" or not decision.admits else DONE
    if not as_json:
        print(decision.text, file=sys.stderr)
    if not decision.admits:
        return EXCEEDS
    environment = command_hook.environment_of(decision, policy, os.environ)
    if problem := command_hook.bind_to_plan(decision, policy, environment):
        print(f"planner: warning: {problem}", file=sys.stderr)
    sys.stdout.flush()
    bound = bool(policy.server) and binds(decision) and not problem
    code, problem = command_hook.launch(arguments.command, environment, policy, bound=bound)
    if problem:
        print(problem, file=sys.stderr)
    return code


def _policy(arguments: argparse.Namespace) -> Policy:
    from planner.admission import command_hook
    from planner.admission.policy import Answer, Policy

    environment = dict(os.environ)
    if arguments.server is not None:
        environment["PLANNER_SERVER"] = arguments.server
    usual = {**command_hook.USUAL, **({"unreachable": Answer.ADMIT} if arguments.run_unchecked else {})}
    policy = Policy.read(environment, arguments.policy, usual)
    # Only who names a server asks one: the environment's is for the callback, and for hooks.
    return policy if arguments.server is not None else dataclasses.replace(policy, server="")


def _decide(arguments: argparse.Namespace, policy: Policy) -> Decision:
    from planner.admission import command_hook, service_query
    from planner.admission.decision import decide

    if arguments.server is not None:
        from planner.job.loading import bundle as bundle_of

        bundle = bundle_of(job_of(arguments, is_traced=False))
        return service_query.ask(lambda: bundle, policy, command_hook.SYSTEM)
    from planner.report.statement import to_json

    return decide(
        to_json(plan_job(job_of(arguments), with_advice=True, cached=not arguments.no_cache).plan), None, policy
    )


def _checked_here(job: Job, *, cached: bool) -> int:
    from planner.report.plan_text import one_line

    found = plan_job(job, with_advice=False, cached=cached)
    print(one_line(found.plan))
    return exit_code(found)

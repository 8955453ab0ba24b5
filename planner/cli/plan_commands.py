"""`planner plan`, `check` and `spec`: what a job will hold, whether it may run, and the job itself as a spec."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.job_input import job_of
from planner.cli.options import (
    DONE,
    EXCEEDS,
    add_command,
    add_format,
    add_risk,
    add_verbose,
    at_risk,
    exit_code,
    job_options,
    print_plan,
    tracing_options,
    write_file,
)
from planner.errors import PlannerError
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.admission.decision import Decision
    from planner.admission.policy import Policy
    from planner.cli.options import Commands
    from planner.job.schema import Job
    from planner.planning.plan import PlanningResult


def add_plan(commands: Commands) -> None:
    """Adds the parser of `planner plan`."""
    parser = add_command(
        commands, "plan", run_plan, tracing_options(), job_options(),
        help="say what every rank will hold, phase by phase, and whether it fits",
        description="Plans a job: traces its training step without a GPU and says what memory every rank will take. "
        "Ends with 0 if it fits (also tightly), 3 if it does not, 2 if the input is wrong.",
    )  # fmt: skip
    add_format(parser)
    add_risk(parser)
    add_verbose(parser)
    parser.add_argument("--timeline", type=Path, metavar="FILE.html", help="memory over time, as a page of its own")
    parser.add_argument("--snapshot", type=Path, metavar="FILE.pickle", help="for PyTorch's own memory viewer")
    parser.add_argument(
        "--rank", type=int, help="of which rank --snapshot is (default: the one with the least headroom)"
    )
    parser.add_argument("--no-advice", action="store_true", help="do not look for changes that would make it fit")


def run_plan(arguments: argparse.Namespace) -> int:
    """`planner plan`: 0 or 3, or what planning raises."""
    if arguments.rank is not None and not arguments.snapshot:
        raise PlannerError(
            "--rank says of which rank --snapshot is, and there is none",
            remedy="add --snapshot FILE.pickle, or leave --rank out: the plan has every rank",
            place="--rank",
        )
    drawn = bool(arguments.timeline or arguments.snapshot)
    job = job_of(arguments)
    result = _plan(job, arguments, with_advice=not arguments.no_advice, with_eager=True, keep_traces=drawn)
    plan = at_risk(arguments, result.plan)
    if path := arguments.timeline:
        from planner.report.class_timeline import timelines_of
        from planner.report.html_pages import render_page

        histories = [rank_trace.trace.events for rank_trace in result.traces]
        page = render_page(plan, timelines_of(plan, histories, result.timelines))
        write_file(path, lambda: path.write_text(page, encoding="utf-8"))
    if path := arguments.snapshot:
        from planner.report.memory_viz import write_snapshot
        from planner.report.statement import ranks_text

        (statement, events), conf = result.class_to_draw(arguments.rank), plan.allocator_conf
        write_file(path, lambda: write_snapshot(path, events, conf))
        chosen = arguments.rank is None and len(plan.rank_classes) > 1
        why = ", which has the least headroom (--rank for another)" if chosen else ""
        print(f"{path} is of {ranks_text(statement.ranks)}{why}", file=sys.stderr)
    return print_plan(arguments, plan)


def _plan(
    job: Job,
    arguments: argparse.Namespace,
    *,
    with_advice: bool,
    with_eager: bool = False,
    keep_traces: bool = False,
) -> PlanningResult:
    """The answer for a job; raises what planning raises."""
    from planner.planning.preload import usable
    from planner.planning.trace_source import TraceCache, TraceSource
    from planner.searching.plan_advice import plan_with_advice

    with show_progress() as progress:
        progress("loading PyTorch")
        source = TraceSource(cache=None if arguments.no_cache else TraceCache.of_user())
        return plan_with_advice(
            job, source, processes=usable(), keep_traces=keep_traces, eager=with_eager, advice=with_advice,
            progress=progress,
        )  # fmt: skip


def add_check(commands: Commands) -> None:
    """Adds the parser of `planner check`."""
    parser = add_command(
        commands, "check", run_check, tracing_options(), job_options(),
        help="say in one line whether a job fits, and run a command only if it does",
        usage="planner check [-h] [--server URL] [--run-unchecked] [--policy FILE.ini] [--risk SHARE]"
        " [--format text|json]"
        " [options of the job] JOB [-- COMMAND ...]",
        description="Plans a job, here or by a planner service, and prints the verdict in one line. Exit code as for "
        "plan. With a command it runs that command if the job may run; else it ends with 3.",
    )  # fmt: skip
    parser.add_argument(
        "--server", metavar="URL",
        help="ask the planner service there, without PyTorch (default: the policy's, PLANNER_SERVER; '': plan here)",
    )  # fmt: skip
    parser.add_argument(
        "--run-unchecked", action="store_true",
        help="run the command also where the service has no plan in time, unless the operator's file refuses that",
    )  # fmt: skip
    parser.add_argument("--policy", type=Path, metavar="FILE.ini", help="the operator's (default: docs/admission.md)")
    add_format(parser)
    add_risk(parser)


def run_check(arguments: argparse.Namespace) -> int:
    """`planner check`: 0 or 3, or what planning raises; or what the command ends with."""
    as_json = arguments.format == "json"
    policy = _policy(arguments)
    if not policy.server and not arguments.command and not as_json:
        from planner.report.verdict_text import job_sentence

        plan = at_risk(arguments, _plan(job_of(arguments), arguments, with_advice=False).plan)
        print(job_sentence(plan))
        return exit_code(arguments, plan)
    from planner.admission import command_hook
    from planner.admission.service_query import binds

    decision = _decide(arguments, policy)
    if as_json:
        print(json.dumps(decision.to_json(), indent=2))
    if decision.verdict == "unplannable":
        raise PlannerError(decision.reason)
    if not as_json:
        print(decision.text, file=sys.stderr if arguments.command else sys.stdout)
    if not arguments.command:
        return EXCEEDS if decision.verdict == "exceeds" or not decision.admits else DONE
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
    from planner.admission.policy import Action, Policy
    from planner.truth.calibration.recorded_errors import parse_risk

    environment = dict(os.environ)
    if arguments.server is not None:
        environment["PLANNER_SERVER"] = arguments.server
    usual = {**command_hook.USUAL, **({"unreachable": Action.ADMIT} if arguments.run_unchecked else {})}
    policy = Policy.read(environment, arguments.policy, usual)
    if arguments.risk is not None:
        policy = dataclasses.replace(policy, risk=parse_risk(arguments.risk, "--risk"))
    return policy if arguments.server != "" else dataclasses.replace(policy, server="")


def _decide(arguments: argparse.Namespace, policy: Policy) -> Decision:
    from planner.admission import command_hook, service_query
    from planner.admission.decision import decide

    if policy.server:
        from planner.job.loading import bundle as bundle_of

        bundle = bundle_of(job_of(arguments, is_traced=False))
        return service_query.ask(lambda: bundle, policy, command_hook.SYSTEM)
    return decide(_plan(job_of(arguments), arguments, with_advice=True).plan, policy)


def add_spec(commands: Commands) -> None:
    """Adds the parser of `planner spec`."""
    parser = add_command(
        commands, "spec", run_spec, job_options(),
        help="print a job as a spec, also out of a model's name or what you already have",
        description="Checks a job and prints it as a spec: what differs from the defaults. With --from-..., files of"
        " transformers, accelerate, DeepSpeed and PEFT stand in it as they are.",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="print every key, with its default")
    parser.add_argument("--bundle", action="store_true", help="print one self-contained JSON object instead")
    parser.add_argument(
        "--program", action="store_true", help="print the training program that is planned, for torchrun, instead"
    )
    parser.add_argument("--json-schema", action="store_true", help="print the JSON Schema of specs, for editors")


def run_spec(arguments: argparse.Namespace) -> int:
    """`planner spec`: 0, or SpecError."""
    from planner.job.loading import bundle_text
    from planner.job.printing import job_yaml, short_yaml
    from planner.programs.launching import program_text

    if arguments.json_schema:
        from planner.job.spec_keys import json_schema

        print(json.dumps(json_schema(), indent=2))
        return DONE
    job = job_of(arguments, is_traced=False)
    if arguments.program:
        print(program_text(job), end="")
        return DONE
    print_spec = bundle_text if arguments.bundle else job_yaml if arguments.all else short_yaml
    print(print_spec(job), end="")
    return DONE

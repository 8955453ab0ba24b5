"""The command line: parse, call, show. Heavy rooms are imported by the command that needs them.

A command is one function that adds its parser and one that runs it and returns the exit code: 0 fits, tight or done,
3 does not fit. `main` adds 2 for input that is wrong and 1 for a fault of planner's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from planner.errors import PlannerError
from planner.progress import shown

if TYPE_CHECKING:
    from planner.admission.decision import Decision
    from planner.admission.policy import Policy
    from planner.events import Event
    from planner.planning import Planned
    from planner.report.statement import Plan
    from planner.report.style import Style

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DONE, OUR_FAULT, WRONG_INPUT, EXCEEDS = 0, 1, 2, 3
INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13
"""As shells report a process that SIGINT or SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; no exception leaves it."""
    written, command = _split(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser().parse_args(written)
    except SystemExit as stop:  # argparse has said why: 0 after --help and --version, 2 for a usage error
        return stop.code if isinstance(stop.code, int) else WRONG_INPUT
    arguments.command = command
    debug = bool(arguments.debug or os.environ.get("PLANNER_DEBUG"))
    try:
        run = cast(Callable[[argparse.Namespace], int], arguments.run)
        code = run(arguments)
        sys.stdout.flush()
        return code
    except PlannerError as error:
        _say(str(error), debug)
        return WRONG_INPUT
    except KeyboardInterrupt:
        _say("interrupted", debug)
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer has no reader; without this, Python complains about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        problem = "".join(traceback.format_exception_only(error)).splitlines()[0]
        hint = "" if debug else "; --debug shows where"
        _say(f"planner: a fault of planner itself, please report it: {problem}{hint}", debug)
        return OUR_FAULT


def _split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is planner's, and the command behind `--` that `check` is put in front of."""
    end = next((index for index, each in enumerate(argv) if each == "--"), len(argv))
    if next((each for each in argv if not each.startswith("-")), "") != "check":
        return argv, ()
    return argv[:end], argv[end + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner",
        description="Says before a PyTorch training job starts what GPU memory every rank will take.",
        parents=[_common_options()],
    )
    parser.set_defaults(debug=False)
    parser.add_argument("--version", action="version", version=f"planner {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_plan(commands)
    _add_check(commands)
    _add_spec(commands)
    _add_replay(commands)
    _add_measure(commands)
    _add_compare(commands)
    _add_serve(commands)
    _add_capacity(commands)
    return parser


def _common_options() -> argparse.ArgumentParser:
    """What every command takes, before and after its name."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,  # a default here would undo what stands before the command's name
        help="show where an error comes from (also: PLANNER_DEBUG=1)",
    )
    return options


def _add_plan(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        parents=[_common_options()],
        help="say what every rank will hold, phase by phase, and whether it fits",
        description="Plans a job: traces its training step without a GPU and says what memory every rank will take. "
        "Ends with 0 if it fits (also tightly), 3 if it does not, 2 if the input is wrong.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.add_argument("--timeline", type=Path, metavar="FILE.html", help="memory over time, as a page of its own")
    parser.add_argument("--snapshot", type=Path, metavar="FILE.pickle", help="for PyTorch's own memory viewer")
    parser.add_argument("--no-advice", action="store_true", help="do not look for changes that would make it fit")
    parser.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> int:
    """`planner plan`: 0 or 3, or what planning raises."""
    from planner.report.statement import to_json
    from planner.report.text import render

    drawn = bool(arguments.timeline or arguments.snapshot)
    found = _answer(arguments.job, with_advice=not arguments.no_advice, keep_traces=drawn)
    if arguments.timeline:
        _write_timeline(found, arguments.timeline)
    if arguments.snapshot:
        _write_snapshot(found, arguments.snapshot)
    if arguments.format == "json":
        print(json.dumps(to_json(found.plan), indent=2))
    else:
        print(render(found.plan, _style(), notes=found.notes), end="")
    return _exit_code(found)


def _add_check(commands: Commands) -> None:
    parser = commands.add_parser(
        "check",
        parents=[_common_options()],
        help="say in one line whether a job fits, and run a command only if it does",
        usage="planner check [-h] [--server URL] [--policy FILE.ini] [--format text|json] JOB [-- COMMAND ...]",
        description="Plans a job, here or by a planner service, and prints the verdict in one line. Exit code as for "
        "plan. With a command it becomes that command if the job may run; else it ends with 3.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--server", metavar="URL", help="ask the planner service there; PyTorch is not needed then")
    parser.add_argument("--policy", type=Path, metavar="FILE.ini", help="the operator's (default: docs/admission.md)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_check)


def run_check(arguments: argparse.Namespace) -> int:
    """`planner check`: 0 or 3, or what planning raises; or what the command ends with."""
    if arguments.server is None and not arguments.command and arguments.format == "text":
        return _checked_here(arguments.job)
    from planner.admission import launching

    policy = _policy(arguments)
    decision = _decided(arguments, policy)
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
    environment = launching.environment_of(decision, policy, os.environ)
    if problem := launching.bind_to_plan(decision, policy, environment):
        print(f"planner: warning: {problem}", file=sys.stderr)
    sys.stdout.flush()
    code, problem = launching.become(arguments.command, environment)
    print(problem, file=sys.stderr)
    return code


def _policy(arguments: argparse.Namespace) -> Policy:
    from planner.admission import launching
    from planner.admission.policy import Policy

    environment = dict(os.environ)
    if arguments.server is not None:
        environment["PLANNER_SERVER"] = arguments.server
    policy = Policy.read(environment, arguments.policy, launching.USUAL)
    # Only who names a server asks one: the environment's is for the callback, and for hooks.
    return policy if arguments.server is not None else dataclasses.replace(policy, server="")


def _decided(arguments: argparse.Namespace, policy: Policy) -> Decision:
    from planner.admission import asking, launching, specs
    from planner.admission.decision import decide

    if arguments.server is not None:
        bundle = specs.bundle_of_file(arguments.job)
        return asking.ask(lambda: bundle, policy, launching.SYSTEM)
    from planner.report.statement import to_json

    return decide(to_json(_answer(arguments.job, with_advice=True).plan), None, policy)


def _checked_here(job_file: Path) -> int:
    from planner.report.text import one_line

    found = _answer(job_file, with_advice=False)
    print(one_line(found.plan))
    return _exit_code(found)


def _answer(job_file: Path, *, with_advice: bool, keep_traces: bool = False) -> Planned:
    from planner import side_by_side
    from planner.answer import answer
    from planner.spec.loading import load_job

    job = load_job(job_file)
    with shown() as progress:
        progress("loading PyTorch")
        return answer(
            job,
            with_advice=with_advice,
            progress=progress,
            processes=side_by_side.usable(),
            keep_traces=keep_traces,
        )


def _exit_code(found: Planned) -> int:
    if found.plan.verdict == "exceeds":
        return EXCEEDS
    if found.plan.verdict == "tight":
        print("warning: it is tight", file=sys.stderr)
    return DONE


def _style() -> Style:
    from planner.report.style import style_of

    return style_of(sys.stdout, os.environ, shutil.get_terminal_size((100, 24)).columns)


def _write_timeline(found: Planned, path: Path) -> None:
    from planner.report.timeline_page import Traced, render_page

    classes = [
        Traced(statement, each.trace.events, timeline)
        for statement, each, timeline in zip(found.plan.rank_classes, found.traces, found.timelines, strict=True)
    ]
    _write(path, lambda: path.write_text(render_page(found.plan, classes), encoding="utf-8"))


def _write_snapshot(found: Planned, path: Path) -> None:
    from planner.report.memory_viz import write_snapshot

    first = found.traces[0]
    _write(path, lambda: write_snapshot(path, first.trace.events, found.plan.job["allocator"]["conf"]))


def _write(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise PlannerError(f"cannot write: {error.strerror}", place=str(path)) from error


def _add_replay(commands: Commands) -> None:
    parser = commands.add_parser(
        "replay",
        parents=[_common_options()],
        help="replay a recorded snapshot of CUDA memory through the allocator's model",
        description="Replays a pickle of torch.cuda.memory._dump_snapshot (also .gz, .xz) and says how many addresses "
        "and segment decisions the model gets right, and what another allocator setting would have reserved.",
    )
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT")
    parser.add_argument("--conf", help="what this PYTORCH_ALLOC_CONF would have reserved")
    parser.add_argument("--capacity", help="with --conf: on a device that has so much for segments (79.1GiB)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_replay)


def run_replay(arguments: argparse.Namespace) -> int:
    """`planner replay`: 0, or SnapshotError or AllocatorConfError."""
    from planner.allocator.verify import verify_snapshot
    from planner.report.replay_text import render_replay

    capacity = _size(arguments.capacity, "--capacity")
    report = verify_snapshot(arguments.snapshot, arguments.conf, capacity).to_json()
    print(
        json.dumps(report, indent=2)
        if arguments.format == "json"
        else render_replay(arguments.snapshot.name, report, _style()),
        end="",
    )
    return DONE


def _size(written: str | None, place: str) -> int | None:
    from planner.units import parse_bytes

    try:
        return None if written is None else parse_bytes(written)
    except ValueError as error:
        raise PlannerError(str(error), allowed="79.1GiB, 80GB, 1048576", place=place) from None


def _add_spec(commands: Commands) -> None:
    parser = commands.add_parser(
        "spec",
        parents=[_common_options()],
        help="print a job spec with every default filled in",
        description="Checks a job spec and prints it with every default filled in.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--bundle", action="store_true", help="print one self-contained JSON object instead")
    parser.set_defaults(run=run_spec)


def run_spec(arguments: argparse.Namespace) -> int:
    """`planner spec`: 0, or SpecError."""
    from planner.spec.bundle import bundle_text
    from planner.spec.loading import load_job
    from planner.spec.printing import job_yaml

    job = load_job(arguments.job)
    print(bundle_text(job) if arguments.bundle else job_yaml(job), end="")
    return DONE


def _add_measure(commands: Commands) -> None:
    parser = commands.add_parser(
        "measure",
        parents=[_common_options()],
        help="run the very same step for real and write down what it took",
        description="Runs one rank's training step on a real device, its peers absent, and appends one line of JSON "
        "to a file. Running out of memory is a result.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--device", required=True, help="cuda, cuda:1, or cpu")
    parser.add_argument("--rank", type=int, default=0, help="which rank to be (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("measurements.jsonl"), metavar="FILE.jsonl")
    parser.add_argument("--snapshot", type=Path, metavar="FILE.pickle.xz", help="also the allocator's history (cuda)")
    parser.set_defaults(run=run_measure)


def run_measure(arguments: argparse.Namespace) -> int:
    """`planner measure`: 0, or SpecError or MeasureError."""
    from planner.spec.loading import load_job

    conf = load_job(arguments.job).allocator.conf
    if conf:
        os.environ["PYTORCH_ALLOC_CONF"] = conf  # read once, while torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler talks on standard error otherwise
    with shown() as progress:
        progress(f"measuring on {arguments.device}")
        from planner.measuring.command import run_measure as measured

        found = measured(
            arguments.job,
            device=arguments.device,
            rank=arguments.rank,
            out=arguments.output,
            snapshot=arguments.snapshot,
        )
    print(f"{found.case or 'the step'}: one line more in {arguments.output}", file=sys.stderr)
    return DONE


def _add_compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        parents=[_common_options()],
        help="set a plan and a measurement, or a recorded snapshot, side by side",
        description="Sets what was predicted beside what was measured: peaks, phases, categories.",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN|JOB", help="what planner plan --format json wrote, or a job")
    parser.add_argument("measured", type=Path, metavar="MEASUREMENTS|SNAPSHOT", help="a .jsonl file, or a snapshot")
    parser.add_argument("--case", default="", help="only measurements of this case")
    parser.add_argument("--rank", type=int, help="only measurements of this rank")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """`planner compare`: 0, or what planning and reading raise."""
    from planner.comparing import command

    plan, events = _plan_to_compare(arguments.plan, command.target_of(arguments.measured))
    found = command.run_compare(plan, arguments.measured, case=arguments.case, rank=arguments.rank, events=events)
    print(command.shown(found, as_json=arguments.format == "json"), end="")
    return DONE


def _plan_to_compare(path: Path, target: str) -> tuple[Plan, Sequence[Event]]:
    """A finished plan as it is, a job planned for the kernels of `target`; with the latter its events."""
    from planner.report.statement import SCHEMA, from_json
    from planner.spec.loading import load_job

    document = _json_object(path)
    if document.get("schema") == SCHEMA:
        return from_json(document), ()
    from planner.planning import planned

    with shown() as progress:
        found = planned(load_job(path), progress=progress, target=target)
    return found.plan, found.traces[0].trace.events


def _add_serve(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve",
        parents=[_common_options()],
        help="answer plans and checks over HTTP",
        description="Runs in the foreground until it is told to end (SIGTERM, Ctrl-C) and prints one line with the "
        "address when it is ready. Other settings are PLANNER_... variables.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 answers other machines too (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8642, help="(default: %(default)s)")
    parser.add_argument("--database", default="", metavar="URL", help="sqlite:///FILE, postgresql://USER@HOST/NAME")
    parser.set_defaults(run=run_serve)


def run_serve(arguments: argparse.Namespace) -> int:
    """`planner serve`: 0, or what cannot be used."""
    from planner.service.server import run_serve as served

    served(arguments.host, arguments.port, arguments.database)
    return DONE


def _add_capacity(commands: Commands) -> None:
    parser = commands.add_parser(
        "capacity",
        parents=[_common_options()],
        help="say what GPU memory jobs asked for, will take and took, and what would be on other GPUs",
        description="Asks a planner service for capacity by team, queue and GPU. PyTorch is not needed.",
    )
    parser.add_argument("--server", default=os.environ.get("PLANNER_SERVER", ""), metavar="URL", help="PLANNER_SERVER")
    parser.add_argument("--since", default="", metavar="TIME", help="ended jobs too: 30d, 12h, 2026-01-31T12:00:00Z")
    parser.add_argument("--on", action="append", default=[], metavar="GPU", help="what would be on it; several times")
    parser.add_argument("--add-nodes", type=int, metavar="N", help="what new nodes with the first of --on change")
    parser.add_argument("--gpus-per-node", type=int, default=8, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_capacity)


def run_capacity(arguments: argparse.Namespace) -> int:
    """`planner capacity`: 0, or SettingError, UnreachableError or what the service does not understand."""
    from planner.admission import capacity
    from planner.report.capacity_text import render_capacity

    found = capacity.ask(
        arguments.server, token=os.environ.get("PLANNER_TOKEN", ""), since=arguments.since, on=arguments.on,
        add_nodes=arguments.add_nodes, gpus_per_node=arguments.gpus_per_node, seconds=arguments.timeout,
    )  # fmt: skip
    print(json.dumps(found, indent=2) if arguments.format == "json" else render_capacity(found).rstrip("\n"))
    return DONE


def _json_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # a YAML spec, or nothing at all: the loader says which
    return document if isinstance(document, dict) else {}


def _say(message: str, debug: bool) -> None:
    """To people, on stderr; with the traceback of the exception at hand if they asked for it."""
    if debug:
        traceback.print_exc()
    print(message, file=sys.stderr)


def _version() -> str:
    try:
        return importlib.metadata.version("planner")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"

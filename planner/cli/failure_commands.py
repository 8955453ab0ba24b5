"""`planner explain` and `planner replay`: why a job ran out of memory; a recorded snapshot through the allocator."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.job_input import enter_for_job
from planner.cli.options import DONE, add_command, add_format, style
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.report.statement import Plan
    from planner.truth.failures.snapshot_failure import SnapshotFailure


_MOST_CHARACTERS = 16 * 2**20
_MOST_TOLD = 2**18
"""Characters that the service takes (planner/service/http/job_reports.py): the end of the log."""
_SNAPSHOTS = (".pickle", ".pkl")
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
"""A pickle begins with its protocol since protocol 2, compressed or not."""


def add_explain(commands: Commands) -> None:
    """Adds the parser of `planner explain`."""
    parser = add_command(
        commands, "explain", run_explain,
        help="say why a job ran out of memory, from its log or a snapshot",
        description="Reads what a job that ran out of memory left behind: a log (torch's, the driver's, NCCL's, the "
        "kernel's, Slurm's and Kubernetes' words), a snapshot of CUDA memory taken at the failure, or both; "
        "says who held "
        "what, what failed, and which setting would have helped, each replayed.",
    )  # fmt: skip
    parser.add_argument("failures", nargs="+", metavar="LOG|SNAPSHOT", help="at most one of each; - is a log on stdin")
    parser.add_argument(
        "--plan", metavar="PLAN|RUN|JOB", help="what planner plan or planner run --format json wrote, or a spec to plan"
    )
    parser.add_argument("--rank", type=int, help="the rank that failed; default: the one that the log names, else 0")
    parser.add_argument("--job", metavar="SYSTEM/ID", help="tell the service that this job ended so (slurm/4711)")
    parser.add_argument(
        "--server", default=os.environ.get("PLANNER_SERVER", ""), metavar="URL", help="with --job; PLANNER_SERVER"
    )
    add_format(parser)


def run_explain(arguments: argparse.Namespace) -> int:
    """`planner explain`: 0, or what reading and planning raise."""
    from planner.truth.failures.explanation import explain, to_json
    from planner.truth.failures.explanation_text import render

    text, snapshot = _read(arguments.failures)
    plan = None if arguments.plan is None else _plan_beside(arguments, text if "-" in arguments.failures else "")
    place = " and ".join("standard input" if name == "-" else Path(name).name for name in arguments.failures)
    explanation = explain(text, snapshot, plan=plan, rank=arguments.rank, place=place)
    if arguments.job is not None:
        _tell_service(arguments.job, arguments.server, text)
    if arguments.format == "json":
        print(json.dumps(to_json(explanation), indent=2), end="")
    else:
        print(render(place, explanation, style()), end="")
    return DONE


def _plan_beside(arguments: argparse.Namespace, standard_input: str) -> Plan:
    """The stored plan or run in the file --plan, or the plan of the job that it describes. Raises SpecError."""
    from planner.truth.plan_comparison import read_stored_plan

    stored = read_stored_plan(Path(arguments.plan))
    if stored is not None:
        return stored
    from planner.job.loading import load_job
    from planner.planning.plan import plan_job
    from planner.progress import show_progress

    job = load_job(Path(arguments.plan))
    enter_for_job(job, arguments, standard_input)
    with show_progress() as progress:
        return plan_job(job, progress=progress).plan


def _tell_service(job: str, server: str, text: str) -> None:
    """`PUT /v1/jobs/{system}/{id}` with the words of its end. Raises PlannerError where that is not possible."""
    from planner.admission.client import Client

    system, slash, job_id = job.partition("/")
    if not slash or not system or not job_id:
        raise PlannerError(f"{job!r} names no job", allowed="SYSTEM/ID, such as slurm/4711", place="--job")
    if not text:
        raise PlannerError(
            "a snapshot has no words that the service could keep", remedy="give the log beside it", place="--job"
        )
    try:
        client = Client(server, os.environ.get("PLANNER_TOKEN", ""), system=system)
    except ValueError as error:
        raise PlannerError(str(error), remedy="set PLANNER_SERVER, or give --server", place="--server") from None
    client.bind(system, job_id, {"failure": text[-_MOST_TOLD:]})


def _read(failures: list[str]) -> tuple[str, bytes | None]:
    """The text of the log, and the bytes of the snapshot; of each there may be one."""
    from planner.allocator.snapshot import read_packed, unpack
    from planner.truth.failures.log_text import decode

    logs: list[str] = []
    snapshots: list[bytes] = []
    for name in failures:
        if name == "-":
            packed = sys.stdin.buffer.read(_MOST_CHARACTERS)
        elif Path(name).is_fifo():
            packed = Path(name).read_bytes()
        else:
            packed = read_packed(Path(name))
        if packed.startswith(_ZIP):
            raise PlannerError(
                "it is a ZIP", allowed="a text, a pickle; .gz and .xz of them", remedy="unzip it", place=name
            )
        content = unpack(packed, name) if packed else b""
        if Path(name).suffix in _SNAPSHOTS or content.startswith(_PICKLE):
            snapshots.append(content)
        else:
            logs.append(decode(content[-_MOST_CHARACTERS:]))
    if len(snapshots) > 1 or len(logs) > 1:
        raise PlannerError(
            f"{len(logs)} logs and {len(snapshots)} snapshots",
            allowed="one log, one snapshot, or one of each, of the same failure",
            remedy="explain the failures one after the other",
        )
    return "".join(logs), snapshots[0] if snapshots else None


def add_replay(commands: Commands) -> None:
    """Adds the parser of `planner replay`."""
    parser = add_command(
        commands, "replay", run_replay,
        help="replay a recorded snapshot of CUDA memory through the allocator's model",
        description="Replays a pickle of torch.cuda.memory._dump_snapshot (also .gz, .xz) and says how many addresses "
        "and segment decisions the model gets right, and what another allocator setting would have reserved; of a "
        "recorded failure also what planner explain says.",
    )  # fmt: skip
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT")
    parser.add_argument("--conf", help="what this PYTORCH_ALLOC_CONF would have reserved")
    parser.add_argument("--capacity", help="with --conf: on a device that has so much for segments (79.1GiB)")
    add_format(parser)


def run_replay(arguments: argparse.Namespace) -> int:
    """`planner replay`: 0, or SnapshotError or AllocatorConfError."""
    from planner.allocator.snapshot import read_packed, read_snapshot
    from planner.allocator.verify import verify
    from planner.records import to_plain
    from planner.report.recorded_snapshot import render_replay
    from planner.truth.failures.explanation_text import snapshot_lines
    from planner.truth.failures.snapshot_failure import explain_failures
    from planner.units import parse_bytes

    path, capacity = arguments.snapshot, None
    if arguments.capacity is not None:
        try:
            capacity = parse_bytes(arguments.capacity)
        except ValueError as error:
            raise PlannerError(str(error), allowed="79.1GiB, 80GB, 1048576", place="--capacity") from None
    snapshot = read_snapshot(path)
    report = verify(snapshot, arguments.conf, capacity).to_json()
    # The requests that failed in the recording, explained, by device.
    failures: dict[int, SnapshotFailure] = {}
    if any(entry.action == "oom" for trace in snapshot.traces for entry in trace):
        explained = explain_failures(read_packed(path), str(path))
        failures = {failure.device: failure for failure in explained if failure.recorded}
    if arguments.format == "json":
        for device in report["devices"]:
            if device["device"] in failures:
                device["out_of_memory"] = to_plain(failures[device["device"]])
        print(json.dumps(report, indent=2), end="")
        return DONE
    print(render_replay(path.name, report, style()), end="")
    for failure in failures.values():
        print("", *snapshot_lines(failure, style()), sep="\n")
    return DONE

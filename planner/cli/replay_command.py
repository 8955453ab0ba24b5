"""`planner replay`: a recorded snapshot through the allocator's model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options
from planner.cli.terminal import style
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.out_of_memory.snapshot_failure import SnapshotFailure


def add(commands: Commands) -> None:
    """Adds the parser of `planner replay`."""
    parser = commands.add_parser(
        "replay",
        parents=[common_options()],
        help="replay a recorded snapshot of CUDA memory through the allocator's model",
        description="Replays a pickle of torch.cuda.memory._dump_snapshot (also .gz, .xz) and says how many addresses "
        "and segment decisions the model gets right, and what another allocator setting would have reserved; of a "
        "recorded failure also what planner explain says.",
    )
    parser.add_argument("snapshot", type=Path, metavar="SNAPSHOT")
    parser.add_argument("--conf", help="what this PYTORCH_ALLOC_CONF would have reserved")
    parser.add_argument("--capacity", help="with --conf: on a device that has so much for segments (79.1GiB)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`planner replay`: 0, or SnapshotError or AllocatorConfError."""
    from planner.allocator.snapshot import read_snapshot
    from planner.allocator.verify import verify
    from planner.out_of_memory.explanation import snapshot_to_json as failure_to_json
    from planner.out_of_memory.explanation_text import snapshot_lines
    from planner.report.replay_text import render_replay

    capacity = _size(arguments.capacity, "--capacity")
    snapshot = read_snapshot(arguments.snapshot)
    report = verify(snapshot, arguments.conf, capacity).to_json()
    failed = any(entry.action == "oom" for trace in snapshot.traces for entry in trace)
    failures = _failures(arguments.snapshot) if failed else {}
    if arguments.format == "json":
        for device in report["devices"]:
            if device["device"] in failures:
                device["out_of_memory"] = failure_to_json(failures[device["device"]])
        print(json.dumps(report, indent=2), end="")
        return DONE
    print(render_replay(arguments.snapshot.name, report, style()), end="")
    for failure in failures.values():
        print("", *snapshot_lines(failure, style()), sep="\n")
    return DONE


def _failures(path: Path) -> dict[int, SnapshotFailure]:
    """The requests that failed in the recording, explained, by device."""
    from planner.allocator.snapshot import read_packed
    from planner.out_of_memory.snapshot_failure import explain_failures

    return {each.device: each for each in explain_failures(read_packed(path), str(path)) if each.recorded}


def _size(written: str | None, place: str) -> int | None:
    from planner.units import parse_bytes

    try:
        return None if written is None else parse_bytes(written)
    except ValueError as error:
        raise PlannerError(str(error), allowed="79.1GiB, 80GB, 1048576", place=place) from None

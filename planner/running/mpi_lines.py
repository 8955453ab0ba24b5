"""Reads options of mpirun: how many processes there are, how many on each node, and which variables they are given.

Options are those of Open MPI 5.0 (mpirun(1)); those of other MPIs that are called alike are the same for counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planner.importers.launch_options import count_of, read_options, refused
from planner.running.slurm_lines import Allocation
from planner.running.task_launch import Starter, Tasks

_COUNTS = ("np", "n", "c", "N", "npernode", "ppn", "map_by", "H", "host", "x", "genv", "env")
_WITH_VALUE = frozenset({
    *_COUNTS, "bind_to", "hostfile", "machinefile", "f", "rankfile", "rank_by", "wdir", "wd", "output_filename",
    "output", "stdin", "timeout", "path", "prefix", "tune", "am", "display", "launch_agent", "pernode_list", "cpu_set",
    "default_hostfile", "runtime_options", "report_state_on_timeout", "mca_base_param_file_prefix", "launcher", "iface",
})  # fmt: skip
_ALONE = frozenset({
    "allow_run_as_root", "oversubscribe", "nooversubscribe", "tag_output", "report_bindings", "display_map",
    "display_allocation", "q", "quiet", "v", "verbose", "V", "timestamp_output", "pernode", "nolocal", "bynode",
    "byslot", "disable_recovery", "enable_recovery", "noprefix", "use_hwthread_cpus", "l", "prepend_rank",
})  # fmt: skip
_SEVERAL = {"mca": 2, "gmca": 2, "prtemca": 2, "pmixmca": 2}


def read_mpirun(words: Sequence[str], allocation: Allocation | None) -> tuple[Tasks, dict[str, str], list[str]]:
    """The processes of an mpirun line, variables that it gives them by value, and the command that each runs."""
    rest, exports = _without_exports(words)
    options, command = read_options(rest, _WITH_VALUE, _ALONE, "mpirun of Open MPI 5.0", values=_SEVERAL)
    if ":" in command:
        raise refused("mpirun starts several programs", "one program")
    hosts = _hosts(options)
    per_node = _per_node(options)
    written = next((options[name] for name in ("np", "n", "c") if options.get(name)), None)
    whole = allocation.tasks if allocation is not None else None
    nodes = len(hosts) or (whole.job_nodes if whole is not None else 0)
    if written is not None:
        processes = count_of("-np", written)
    elif per_node and nodes:
        processes = per_node * nodes
    elif hosts:
        processes = sum(hosts.values())
    elif whole is not None:
        processes = whole.job_tasks
    else:
        raise refused(
            "how many processes there are is not said, and this machine's processors do not decide it: -np is missing",
            "-np NUMBER",
        )
    if per_node is None:
        slots = next(iter(hosts.values()), 1) if hosts else 0
        per_node = min(slots, processes) if slots else -(-processes // max(nodes, 1))
    if processes % per_node:
        raise refused(f"{processes} processes, {per_node} on each node", "as many processes on each node")
    tasks = Tasks(
        starter=Starter.MPI,
        nodes=processes // per_node,
        per_node=per_node,
        gpus=whole.gpus if whole is not None else None,
    )
    return tasks, exports, command


def _without_exports(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """`-x NAME=VALUE` may come often; without a value the variable is passed on as it is."""
    rest, exports = list(words), {}
    kept = []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-x", "--x") and rest:
            name, equals, value = rest.pop(0).partition("=")
            if equals:
                exports[name] = value
        elif word in ("-genv", "-env") and len(rest) > 1:
            exports[rest.pop(0)] = rest.pop(0)
        else:
            kept.append(word)
            name = word.lstrip("-").partition("=")[0].replace("-", "_")
            if "=" not in word and name not in _ALONE:
                count = _SEVERAL.get(name, 1)
                kept += rest[:count]
                del rest[:count]
    return [*kept, *rest], exports


def _per_node(options: Mapping[str, str | None]) -> int | None:
    if "pernode" in options:
        return 1
    for name in ("N", "npernode", "ppn"):
        if options.get(name):
            return count_of(f"-{name}", options[name] or "")
    match = re.match(r"ppr:(\d+):node", options.get("map_by") or "")
    return count_of("--map-by ppr", match[1]) if match else None


def _hosts(options: Mapping[str, str | None]) -> dict[str, int]:
    """Hosts with their slots, one where none is said."""
    found: dict[str, int] = {}
    for each in filter(None, (options.get("H") or options.get("host") or "").split(",")):
        name, _, slots = each.partition(":")
        found[name] = found.get(name, 0) + (count_of("-H", slots) if slots else 1)
    return found

"""Reads options of srun and sbatch, and the #SBATCH lines of a batch script: how many processes there are, and where.

Options are those of Slurm 25.05 (srun(1), sbatch(1)), and of its container plugin pyxis.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import SpecError
from planner.importers.launch_options import count_of, read_options, refused
from planner.running.task_launch import Starter, Tasks

_SHORT = {
    "A": "account", "c": "cpus_per_task", "C": "constraint", "d": "dependency", "D": "chdir", "e": "error",
    "G": "gpus", "i": "input", "J": "job_name", "L": "licenses", "m": "distribution", "M": "clusters", "n": "ntasks",
    "N": "nodes", "o": "output", "p": "partition", "q": "qos", "r": "relative", "S": "core_spec", "t": "time",
    "T": "threads", "w": "nodelist", "x": "exclude", "a": "array", "F": "nodefile", "b": "begin", "W": "wait",
    "B": "extra_node_info", "K": "kill_on_bad_exit", "l": "label", "u": "unbuffered", "v": "verbose", "Q": "quiet",
    "E": "preserve_env", "O": "overcommit", "s": "oversubscribe", "X": "disable_status", "k": "no_kill", "H": "hold",
}  # fmt: skip
_ALONE = frozenset({
    "label", "unbuffered", "verbose", "quiet", "preserve_env", "overcommit", "oversubscribe", "disable_status",
    "no_kill", "hold", "exclusive", "overlap", "exact", "whole", "pty", "spread_job", "contiguous", "reboot",
    "use_min_nodes", "no_requeue", "requeue", "parsable", "test_only", "ignore_pbs", "quit_on_interrupt", "nice",
    "container_mount_home", "no_container_mount_home", "container_writable", "container_readonly",
    "container_remap_root", "no_container_remap_root", "kill_on_bad_exit", "propagate", "get_user_env", "immediate",
    "no_container_entrypoint", "container_entrypoint", "x11",
})  # fmt: skip
"""Some take a value, which stands behind `=` then."""
_WITH_VALUE = frozenset({
    "accel_bind", "acctg_freq", "bb", "bbf", "bcast", "cluster_constraint", "comment", "container", "container_image",
    "container_mounts", "container_name", "container_save", "container_workdir", "container_env", "cores_per_socket",
    "cpu_bind", "cpu_freq", "cpus_per_gpu", "deadline", "delay_boot", "epilog", "export", "export_file", "extra",
    "gpu_bind", "gpu_freq", "gpus_per_node", "gpus_per_socket", "gpus_per_task", "gres", "gres_flags", "hint", "jobid",
    "mail_type", "mail_user", "mem", "mem_bind", "mem_per_cpu", "mem_per_gpu", "mincpus", "mpi", "msg_timeout",
    "network", "ntasks_per_core", "ntasks_per_gpu", "ntasks_per_node", "ntasks_per_socket", "open_mode", "power",
    "prefer", "priority", "profile", "prolog", "reservation", "signal", "sockets_per_node", "switches", "task_epilog",
    "task_prolog", "thread_spec", "threads_per_core", "time_min", "tmp", "tres_bind", "tres_per_task", "uid", "gid",
    "wckey", "wrap", "het_group", "oom_kill_step", "segment",
}) | frozenset(set(_SHORT.values()) - _ALONE)  # fmt: skip
_REFUSED = ("ntasks_per_gpu", "ntasks_per_socket", "ntasks_per_core", "het_group", "multi_prog", "array")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The options of a batch script: srun in it starts from these."""

    options: Mapping[str, str | None]

    @property
    def tasks(self) -> Tasks:
        return _tasks(self.options, Starter.BATCH)


def read_srun(words: Sequence[str], allocation: Allocation | None) -> tuple[Tasks, dict[str, str | None], list[str]]:
    """The processes of an srun line, its options, and the command that each runs."""
    own, command = read_options(words, _WITH_VALUE, _ALONE | {"multi_prog"}, "srun of Slurm 25.05", short=_SHORT)
    inherited = dict(allocation.options) if allocation is not None else {}
    if "nodes" in own and "ntasks" not in own:
        inherited.pop("ntasks", None)
    if "ntasks" in own and "ntasks_per_node" not in own and "nodes" not in own:
        inherited = _shrunk(inherited, own)
    return _tasks({**inherited, **own}, Starter.SRUN), own, command


def read_sbatch(words: Sequence[str]) -> tuple[dict[str, str | None], list[str]]:
    """Options of the command line of sbatch, and the script with its arguments."""
    return read_options(words, _WITH_VALUE, _ALONE, "sbatch of Slurm 25.05", short=_SHORT)


def read_script_options(text: str, place: str) -> dict[str, str | None]:
    """Those of the #SBATCH lines, which stand before the first command."""
    found: dict[str, str | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        if not re.match(r"#SBATCH\s", line):
            continue
        try:
            words = shlex.split(line[len("#SBATCH") :], comments=True)
        except ValueError as error:
            raise SpecError(f"the line cannot be read: {error}", place=f"{place}:{number}") from None
        options, rest = read_options(words, _WITH_VALUE, _ALONE, "sbatch of Slurm 25.05", short=_SHORT)
        if rest:
            raise SpecError(f"{rest[0][:80]!a} is no option", allowed="options of sbatch", place=f"{place}:{number}")
        found.update(options)
    return found


def _shrunk(options: dict[str, str | None], own: Mapping[str, str | None]) -> dict[str, str | None]:
    """A step of fewer processes than the allocation has: srun fills nodes with as many as were asked for on each."""
    per_node = options.get("ntasks_per_node")
    nodes = options.get("nodes")
    if per_node and own["ntasks"] and nodes:
        there = _nodes(nodes) or 1
        needed = -(-count_of("--ntasks", own["ntasks"]) // count_of("--ntasks-per-node", per_node))
        if needed < there:
            return {**options, "nodes": str(needed), "ntasks_per_node": None}
        if needed == there:
            return {name: value for name, value in options.items() if name != "ntasks_per_node"}
    return {name: value for name, value in options.items() if name != "ntasks_per_node"}


def _tasks(options: Mapping[str, str | None], starter: Starter) -> Tasks:
    for name in _REFUSED:
        if options.get(name) is not None or (name == "multi_prog" and name in options):
            raise refused(f"--{name.replace('_', '-')} is not read", "--nodes, --ntasks, --ntasks-per-node")
    per_node = _number("--ntasks-per-node", options.get("ntasks_per_node"))
    tasks = _number("--ntasks", options.get("ntasks"))
    nodes = _nodes(options.get("nodes"))
    if nodes is None:
        nodes = -(-tasks // per_node) if tasks and per_node else 1
    if tasks is None:
        tasks = nodes * (per_node or 1)
    if tasks % nodes:
        raise refused(f"{tasks} tasks on {nodes} nodes", "as many tasks on each node")
    each = tasks // nodes
    if starter is Starter.BATCH:
        return Tasks(
            starter=starter, gpus=_gpus(options, nodes, each), job_nodes=nodes, job_tasks=tasks,
            settings=_settings(options, nodes),
        )  # fmt: skip
    return Tasks(
        starter=starter, nodes=nodes, per_node=each, gpus=_gpus(options, nodes, each),
        settings=_settings(options, nodes),
    )  # fmt: skip


def _gpus(options: Mapping[str, str | None], nodes: int, per_node: int) -> int | None:
    """That one process sees: those of its node, or its own."""
    if options.get("gpus_per_task"):
        return _gpu_count(options["gpus_per_task"])
    if (on_node := _gpus_on_node(options, nodes)) is None:
        return None
    binding = options.get("gpu_bind") or ""
    return max(on_node // per_node, 1) if binding.startswith(("single", "per_task")) else on_node


def _gpus_on_node(options: Mapping[str, str | None], nodes: int) -> int | None:
    if options.get("gpus_per_node"):
        return _gpu_count(options["gpus_per_node"])
    for each in (options.get("gres") or "").split(","):
        name, _, count = each.partition(":")
        if name.removeprefix("gres/") == "gpu":
            return _gpu_count(count or "1")
    if options.get("gpus"):
        return max((_gpu_count(options["gpus"]) or 0) // nodes, 1)
    return None


def _gpu_count(written: str | None) -> int | None:
    """`8`, or with a type `a100:8`."""
    number = (written or "").rpartition(":")[2].partition("(")[0]
    return count_of("the number of GPUs", number if number.isdigit() else written or "")


def _settings(options: Mapping[str, str | None], nodes: int) -> dict[str, str]:
    """Variables that are set only if the option was given."""
    names = {
        "ntasks_per_node": "SLURM_NTASKS_PER_NODE",
        "cpus_per_task": "SLURM_CPUS_PER_TASK",
        "job_name": "SLURM_JOB_NAME",
        "gpus_per_node": "SLURM_GPUS_PER_NODE",
        "gpus_per_task": "SLURM_GPUS_PER_TASK",
        "gpus": "SLURM_GPUS",
        "partition": "SLURM_JOB_PARTITION",
    }
    found = {variable: str(options[name]) for name, variable in names.items() if options.get(name)}
    on_node = _gpus_on_node(options, nodes)
    return found | ({"SLURM_GPUS_ON_NODE": str(on_node)} if on_node else {}) | {"SLURM_SUBMIT_DIR": "."}


def _nodes(written: str | None) -> int | None:
    if written is None:
        return None
    least, _, most = written.partition("-")
    if most and most != least:
        raise refused(f"--nodes is {written}: Slurm decides how many", "a number")
    return count_of("--nodes", least)


def _number(name: str, written: str | None) -> int | None:
    return None if written is None else count_of(name, written)

"""Reads the options of srun, sbatch, mpirun and `ray job submit`: how many processes there are, and where."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from planner.errors import SpecError
from planner.job.json_text import read_json
from planner.job.launching.launchers import TABLES, count_of, read_options, refused
from planner.job.yaml_text import read_yaml

ADDRESS = "127.0.0.1"
"""Where nodes meet: on paper nobody does."""


class Starter(StrEnum):
    """Who starts the processes."""

    SRUN = "srun"
    BATCH = "sbatch"
    """The batch script's own command: one process on the first node of an allocation."""
    MPI = "mpirun"
    SUBMITIT = "submitit"
    """Its own processes, on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """`per_node` processes on each of `nodes` nodes, in the order of the nodes."""

    starter: Starter
    nodes: int = 1
    per_node: int = 1
    gpus: int | None = None
    """That each process sees; None: as many as there are processes on its node."""
    job_nodes: int = 1
    job_tasks: int = 1
    """Of the allocation: a batch script's command is one process, and finds these in its environment."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables that the options of the job bring."""

    @property
    def count(self) -> int:
        return self.nodes * self.per_node

    def variables(self, task: int) -> dict[str, str]:
        """What the process of this number finds in its environment: of Slurm 25.05 (srun(1), OUTPUT ENVIRONMENT
        VARIABLES), of Open MPI 5.0 (docs.open-mpi.org, environment variables of MPI processes). Addresses are this
        machine's."""
        node, local = divmod(task, self.per_node)
        if self.starter is Starter.MPI:
            return {
                **self.settings,
                "OMPI_COMM_WORLD_RANK": str(task),
                "OMPI_COMM_WORLD_SIZE": str(self.count),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(self.per_node),
                "OMPI_COMM_WORLD_NODE_RANK": str(local),
                "OMPI_UNIVERSE_SIZE": str(self.count),
                "PMIX_RANK": str(task),
            }
        if self.starter is Starter.SUBMITIT:  # submitit 1.5, local/local.py
            names = ("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_LOCALID")
            return {**dict.fromkeys(names, str(task)), "SUBMITIT_LOCAL_JOB_ID": "1"}
        if self.starter is Starter.BATCH:
            place = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "node1"}
            return {**self.settings, **job_variables(self.job_nodes, self.job_tasks), **place}
        layout = f"{self.per_node}" if self.nodes == 1 else f"{self.per_node}(x{self.nodes})"
        job = job_variables(self.nodes, self.count)
        return {
            **self.settings,
            **job,
            "SLURM_STEP_ID": "0",
            "SLURM_STEPID": "0",
            "SLURM_STEP_NUM_TASKS": str(self.count),
            "SLURM_STEP_NUM_NODES": str(self.nodes),
            "SLURM_STEP_TASKS_PER_NODE": layout,
            "SLURM_STEP_NODELIST": job["SLURM_NODELIST"],
            "SLURM_TASKS_PER_NODE": layout,
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": f"node{node + 1}",
            "SLURM_LAUNCH_NODE_IPADDR": ADDRESS,
            "SLURM_SRUN_COMM_HOST": ADDRESS,
        }


def job_variables(nodes: int, tasks: int) -> dict[str, str]:
    """What a script of an allocation knows of it before anything is started."""
    names = "node1" if nodes == 1 else f"node[1-{nodes}]"
    return {
        "SLURM_JOB_ID": "1",
        "SLURM_JOBID": "1",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NODELIST": names,
        "SLURM_JOB_NODELIST": names,
    }


_REFUSED = ("ntasks_per_gpu", "ntasks_per_socket", "het_group", "multi_prog")


def read_srun(
    words: Sequence[str], batch: Mapping[str, str | None], passed_over: list[str]
) -> tuple[Tasks, dict[str, str | None], list[str]]:
    """The processes of an srun line, its options, and the command that each runs; it starts from the options of the
    `batch` script around it. `passed_over` gets options of plug-ins."""
    own, command = read_options(words, TABLES["srun"], passed_over=passed_over)
    inherited = dict(batch)
    if "nodes" in own and "ntasks" not in own:
        inherited.pop("ntasks", None)
    if "ntasks" in own and "ntasks_per_node" not in own and "nodes" not in own:
        # A step of fewer processes than the allocation has: srun fills nodes with as many as were asked for on each.
        per_node, nodes = inherited.pop("ntasks_per_node", None), inherited.get("nodes")
        if per_node and own["ntasks"] and nodes:
            needed = -(-count_of("--ntasks", own["ntasks"]) // count_of("--ntasks-per-node", per_node))
            if needed < (_nodes(nodes) or 1):
                inherited["nodes"] = str(needed)
    return count_tasks({**inherited, **own}, Starter.SRUN), own, command


def read_sbatch(words: Sequence[str], passed_over: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """Options of the command line of sbatch, and the script with its arguments. `passed_over` gets options of
    plug-ins."""
    return read_options(words, replace(TABLES["srun"], program="sbatch of Slurm 25.05"), passed_over=passed_over)


def read_script_options(text: str, place: str, passed_over: list[str]) -> dict[str, str | None]:
    """Those of the #SBATCH lines, which stand before the first command. `passed_over` gets options of plug-ins."""
    written: dict[str, str | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        if not re.match(r"#SBATCH\s", line):
            continue
        try:
            words = shlex.split(line[len("#SBATCH") :], comments=True)
        except ValueError as error:
            raise SpecError(f"the line cannot be read: {error}", place=f"{place}:{number}") from None
        options, rest = read_sbatch(words, passed_over)
        if rest:
            raise SpecError(
                f"{rest[0][:80]!a} is not an option", allowed="options of sbatch", place=f"{place}:{number}"
            )
        written.update(options)
    return written


_SETTINGS = ("ntasks_per_node", "cpus_per_task", "job_name", "gpus_per_node", "gpus_per_task", "gpus")
"""Options that are variables too, where they are given."""


def count_tasks(options: Mapping[str, str | None], starter: Starter) -> Tasks:
    """The processes of these options of srun or of a batch script. Raises SpecError where Slurm decides how many."""
    for name in _REFUSED:
        if options.get(name) is not None or (name == "multi_prog" and name in options):
            raise refused(f"--{name.replace('_', '-')} is not read", "--nodes, --ntasks, --ntasks-per-node")
    per_node, tasks = (
        None if (written := options.get(name)) is None else count_of(f"--{name.replace('_', '-')}", written)
        for name in ("ntasks_per_node", "ntasks")
    )
    nodes = _nodes(options.get("nodes"))
    if nodes is None:
        nodes = -(-tasks // per_node) if tasks and per_node else 1
    if tasks is None:
        tasks = nodes * (per_node or 1)
    if tasks % nodes:
        raise refused(f"{tasks} tasks on {nodes} nodes", "as many tasks on each node")
    on_node = _gpus_on_node(options, nodes)
    gpus = on_node
    if options.get("gpus_per_task"):
        gpus = _gpu_count(options["gpus_per_task"])
    elif on_node is not None and (options.get("gpu_bind") or "").startswith(("single", "per_task")):
        gpus = max(on_node // (tasks // nodes), 1)
    settings = {f"SLURM_{name.upper()}": value for name in _SETTINGS if (value := options.get(name))}
    settings |= {"SLURM_JOB_PARTITION": partition} if (partition := options.get("partition")) else {}
    settings |= {"SLURM_GPUS_ON_NODE": str(on_node)} if on_node else {}
    settings |= _array_variables(options.get("array"))
    settings["SLURM_SUBMIT_DIR"] = "."
    if starter is Starter.BATCH:
        return Tasks(starter=starter, gpus=gpus, job_nodes=nodes, job_tasks=tasks, settings=settings)
    return Tasks(starter=starter, nodes=nodes, per_node=tasks // nodes, gpus=gpus, settings=settings)


def _array_variables(written: str | None) -> dict[str, str]:
    """What the first task of a job array finds (sbatch(1), --array): `0-15:4`, `1,3,5-7%2`."""
    if not written:
        return {}
    parts = [
        re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", part)
        for part in re.sub(r"%\d+$", "", written).split(",")
    ]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1)) for part in parts if part]
    if len(ranges) < len(parts) or not all(ranges):
        raise refused(f"--array is {written[:80]!a}", "numbers of tasks, as 0-15, 0-15:4 or 1,3,5-7%2")
    first, last = min(tasks[0] for tasks in ranges), max(tasks[-1] for tasks in ranges)
    described = {
        "JOB_ID": 1,
        "TASK_ID": first,
        "TASK_MIN": first,
        "TASK_MAX": last,
        "TASK_COUNT": sum(map(len, ranges)),
    }
    return {f"SLURM_ARRAY_{name}": str(value) for name, value in described.items()}


def _gpus_on_node(options: Mapping[str, str | None], nodes: int) -> int | None:
    if options.get("gpus_per_node"):
        return _gpu_count(options["gpus_per_node"])
    for resource in (options.get("gres") or "").split(","):
        name, _, count = resource.partition(":")
        if name.removeprefix("gres/") == "gpu":
            return _gpu_count(count or "1")
    if options.get("gpus"):
        return max(_gpu_count(options["gpus"]) // nodes, 1)
    return None


def _gpu_count(written: str | None) -> int:
    """`8`, or with a type `a100:8`."""
    number = (written or "").rpartition(":")[2].partition("(")[0]
    return count_of("the number of GPUs", number if number.isdigit() else written or "")


def _nodes(written: str | None) -> int | None:
    if written is None:
        return None
    least, _, most = written.partition("-")
    if most and most != least:
        raise refused(f"--nodes is {written}: Slurm decides how many", "a number")
    return count_of("--nodes", least)


def read_mpirun(words: Sequence[str], whole: Tasks | None) -> tuple[Tasks, dict[str, str], list[str]]:
    """The processes of an mpirun line, variables that it gives them by value, and the command that each runs.
    `whole`: the tasks of the batch script around it."""
    gathered: dict[str, list[str]] = {}
    options, command = read_options(words, TABLES["mpirun"], gathered=gathered)
    exports = dict(given.split("=", 1) for given in gathered.get("x", []) if "=" in given)  # others are passed on
    exports |= dict(given.split(" ", 1) for name in ("genv", "env") for given in gathered.get(name, []))
    if ":" in command:
        raise refused("mpirun starts several programs", "one program")
    hosts: dict[str, int] = {}  # with their slots, one where none is said
    for host in filter(None, (options.get("H") or options.get("host") or options.get("hosts") or "").split(",")):
        name, _, slots = host.partition(":")
        hosts[name] = hosts.get(name, 0) + (count_of("-H", slots) if slots else 1)
    per_node = _per_node(options)
    written = next((options[name] for name in ("np", "n", "c") if options.get(name)), None)
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
        per_node = min(next(iter(hosts.values())), processes) if hosts else -(-processes // max(nodes, 1))
    if processes % per_node:
        raise refused(f"{processes} processes, {per_node} on each node", "as many processes on each node")
    gpus = whole.gpus if whole is not None else None
    return Tasks(starter=Starter.MPI, nodes=processes // per_node, per_node=per_node, gpus=gpus), exports, command


def _per_node(options: Mapping[str, str | None]) -> int | None:
    if "pernode" in options:
        return 1
    for name in ("N", "npernode", "ppn"):
        if options.get(name):
            return count_of(f"-{name}", options[name] or "")
    match = re.match(r"ppr:(\d+):node", options.get("map_by") or "")
    return count_of("--map-by ppr", match[1]) if match else None


def read_submit(words: Sequence[str], text_of: Callable[[str], str]) -> tuple[list[str], dict[str, str], str]:
    """The entrypoint behind `ray job submit`, its variables, and its folder on this machine; empty where that is a
    package somewhere else, or not named. Raises SpecError."""
    options, entrypoint = read_options(words, TABLES["ray"])
    if not entrypoint:
        raise refused("ray job submit has no entrypoint", "ray job submit [options] -- COMMAND")
    runtime: Any = {}
    if path := options.get("runtime_env"):
        runtime = read_yaml(text_of(path), path).plain()
    if text := options.get("runtime_env_json"):
        path, runtime = "--runtime-env-json", read_json(text, "--runtime-env-json")
    if not isinstance(runtime, Mapping):
        problem = f"must be a mapping, not a {type(runtime).__name__}"
        raise SpecError(problem, allowed="a runtime environment of Ray", place=path or "")
    variables = runtime.get("env_vars") or {}
    if not isinstance(variables, Mapping) or not all(isinstance(value, str) for value in variables.values()):
        raise SpecError("env_vars must be strings", allowed="a mapping of names to texts", place="runtime_env.env_vars")
    folder = options.get("working_dir") or str(runtime.get("working_dir") or "")
    return entrypoint, dict(variables), "" if "://" in folder else folder

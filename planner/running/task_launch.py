"""Processes that a scheduler's or MPI's launcher starts, each with the same command, and the environment of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_ADDRESS = "127.0.0.1"


class Starter(StrEnum):
    """Who starts the processes."""

    SRUN = "srun"
    BATCH = "sbatch"
    """The batch script's own command: one process on the first node of an allocation."""
    MPI = "mpirun"


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
    """Of the allocation: a batch script's command is one process, and is told of these."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables that the options of the job bring."""

    @property
    def count(self) -> int:
        return self.nodes * self.per_node

    def variables(self, task: int) -> dict[str, str]:
        """What the process of this number finds in its environment."""
        return {**self.settings, **_VARIABLES[self.starter](self, task)}


def _slurm(tasks: Tasks, task: int) -> dict[str, str]:
    """Slurm 25.05 (srun(1), OUTPUT ENVIRONMENT VARIABLES); the addresses are this machine's."""
    layout = f"{tasks.per_node}" if tasks.nodes == 1 else f"{tasks.per_node}(x{tasks.nodes})"
    nodes = "node1" if tasks.nodes == 1 else f"node[1-{tasks.nodes}]"
    steps = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks.count),
        "SLURM_STEP_NUM_NODES": str(tasks.nodes),
        "SLURM_STEP_TASKS_PER_NODE": layout,
        "SLURM_STEP_NODELIST": nodes,
    }
    return {
        **_job(tasks.nodes, tasks.count),
        **steps,
        "SLURM_TASKS_PER_NODE": layout,
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task % tasks.per_node),
        "SLURM_NODEID": str(task // tasks.per_node),
        "SLURMD_NODENAME": f"node{task // tasks.per_node + 1}",
        "SLURM_LAUNCH_NODE_IPADDR": _ADDRESS,
        "SLURM_SRUN_COMM_HOST": _ADDRESS,
    }


def _batch(tasks: Tasks, _: int) -> dict[str, str]:
    place = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "node1"}
    return {**_job(tasks.job_nodes, tasks.job_tasks), **place}


def _job(nodes: int, tasks: int) -> dict[str, str]:
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


def _open_mpi(tasks: Tasks, task: int) -> dict[str, str]:
    """Open MPI 5.0 (docs.open-mpi.org, environment variables of MPI processes)."""
    local = str(task % tasks.per_node)
    return {
        "OMPI_COMM_WORLD_RANK": str(task),
        "OMPI_COMM_WORLD_SIZE": str(tasks.count),
        "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(tasks.per_node),
        "OMPI_COMM_WORLD_NODE_RANK": local,
        "OMPI_UNIVERSE_SIZE": str(tasks.count),
        "PMIX_RANK": str(task),
    }


_VARIABLES: Mapping[Starter, Callable[[Tasks, int], dict[str, str]]] = {
    Starter.SRUN: _slurm,
    Starter.BATCH: _batch,
    Starter.MPI: _open_mpi,
}


def job_variables(nodes: int, tasks: int) -> dict[str, str]:
    """What a script of an allocation knows of it before anything is started."""
    return _job(nodes, tasks)

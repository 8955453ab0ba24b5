"""The environment in which a launcher would start one rank.

Variables of torchrun: torch 2.13, torch/distributed/elastic/agent/server/local_elastic_agent.py; of deepspeed: 0.19.8,
launcher/launch.py. Those of accelerate are accelerate's own, which is asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.running.launch_line import Launcher, LaunchLine

_ADDRESS, _PORT = "127.0.0.1", "29500"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank stands in its world."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    nodes: int


def place_of(line: LaunchLine, rank: int) -> RankPlace:
    """The place of a rank: nodes are filled one after the other, as every launcher here does."""
    per_node = line.processes_per_node
    return RankPlace(rank, line.world_size, rank % per_node, per_node, rank // per_node, line.nodes)


def variables_of(line: LaunchLine, rank: int) -> dict[str, str]:
    """What the launcher sets for this rank, besides what it inherits; for accelerate without accelerate's own."""
    place = place_of(line, rank)
    if line.tasks is None:
        return _by_launcher(line, place)
    task = rank if line.launcher is Launcher.PYTHON else place.node
    return {**line.tasks.variables(task), **_by_launcher(line, place)}


def _by_launcher(line: LaunchLine, place: RankPlace) -> dict[str, str]:
    match line.launcher:
        case Launcher.PYTHON:
            return {}
        case Launcher.TORCHRUN:
            return _torchrun(place, line.options)
        case Launcher.ACCELERATE:
            # A single process is started without torchrun, and has no world.
            return _torchrun(place, {}) if place.world_size > 1 else {}
        case Launcher.DEEPSPEED:
            return _deepspeed(place, line.options)


def extra_arguments(line: LaunchLine, rank: int) -> tuple[str, ...]:
    """What the launcher puts before the program's arguments."""
    if line.launcher is not Launcher.DEEPSPEED or "no_local_rank" in line.options:
        return ()
    return (f"--local_rank={place_of(line, rank).local_rank}",)


def _torchrun(place: RankPlace, options: Mapping[str, str | None]) -> dict[str, str]:
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": options.get("role") or "default",
        "MASTER_ADDR": options.get("master_addr") or _ADDRESS,
        "MASTER_PORT": options.get("master_port") or _PORT,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": options.get("max_restarts") or "0",
        "TORCHELASTIC_RUN_ID": options.get("rdzv_id") or "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _deepspeed(place: RankPlace, options: Mapping[str, str | None]) -> dict[str, str]:
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_SIZE": str(place.local_world_size),
        "CROSS_RANK": str(place.node),
        "CROSS_SIZE": str(place.nodes),
        "MASTER_ADDR": options.get("master_addr") or _ADDRESS,
        "MASTER_PORT": options.get("master_port") or _PORT,
    }

"""Makes ranks of the files that the processes of a program have left (planner.measuring.rank_recorder)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.measuring.measured_program import MeasuredRank, RankWithoutFigures
from planner.measuring.measurement import Levels

_KILLED = "it imported torch, and ended by a signal or os._exit, which leaves no time to write figures"
_WITHOUT_CUDA = "it ended without having used CUDA"
_NEVER_SEEN = (
    "no Python of it that imported torch was seen here: it did not come that far, runs on another machine, or was "
    "started without this environment (another PYTHONPATH, python -E or -I, env -i, a scheduler)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How ranks are told: `size` of them; `variable` has a process's rank where RANK is not set, and a world of one
    needs none."""

    size: int
    variable: str = ""

    def rank_of(self, process: Mapping[str, Any]) -> int | None:
        """None for a process that is no rank, as the launcher's own."""
        variables = process["variables"]
        said = variables.get("RANK") or variables.get(self.variable, "")
        if said.isdecimal():
            return int(said)
        return 0 if self.size == 1 else None


def read_processes(folder: Path) -> list[Mapping[str, Any]]:
    """What each process has left."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def ranks_of(
    processes: Sequence[Mapping[str, Any]], world: World
) -> tuple[tuple[MeasuredRank, ...], tuple[RankWithoutFigures, ...]]:
    """The ranks with figures, and those of the world without, by their number."""
    found: list[MeasuredRank] = []
    missing: list[RankWithoutFigures] = []
    by_rank: dict[int, list[Mapping[str, Any]]] = {rank: [] for rank in range(world.size)}
    for process in processes:
        rank = world.rank_of(process)
        if rank is not None:
            by_rank.setdefault(rank, []).append(process)
    for rank, of_rank in sorted(by_rank.items()):
        own = _without_helpers(of_rank)
        measured = [process for process in own if process.get("devices")]
        if measured:
            found.append(_rank(rank, measured))
        else:
            missing.append(RankWithoutFigures(rank=rank, reason=_reason(own)))
    return tuple(found), tuple(missing)


def _without_helpers(processes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What a rank starts itself (workers that compile or load) inherits its RANK, and is not the rank."""
    ranks = {(each["host"], each["pid"]) for each in processes if "RANK" in each["variables"]}
    return [each for each in processes if (each["host"], each["parent"]) not in ranks]


def _reason(processes: Iterable[Mapping[str, Any]]) -> str:
    ended = [process["has_ended"] for process in processes]
    if not ended:
        return _NEVER_SEEN
    return _WITHOUT_CUDA if all(ended) else _KILLED


def _rank(rank: int, processes: Sequence[Mapping[str, Any]]) -> MeasuredRank:
    pairs = [(device, process) for process in processes for device in process["devices"]]
    device, process = max(pairs, key=lambda pair: pair[0]["peak"]["reserved_bytes"])
    return MeasuredRank(
        rank=rank,
        host=process["host"],
        gpu=device["name"],
        uuid=device["uuid"],
        total_bytes=device["total_bytes"],
        peak=Levels(**device["peak"]),
        end=Levels(**device["end"]),
        device_bytes_at_end=device["device_bytes_at_end"],
        cache_releases=device["cache_releases"],
        resets=process["resets"],
        processes=len(processes),
        devices=len(process["devices"]),
        ended_by=process["ended_by"],
        snapshot=process["snapshot"],
        software=process["software"],
        allocator_conf=process["allocator_conf"],
    )

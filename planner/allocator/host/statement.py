"""What the nodes of a job will hold, and whether it fits: values, and the `host` object of a plan. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.events import Phase
from planner.host_events import HostCategory
from planner.records import every, from_plain, shape, to_plain

VERDICTS = ("fits", "tight", "exceeds")
"""From best to worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPeak:
    """The highest point of a node: the sum over its ranks of what cannot be given back.

    `interval_bytes`: between the bounds of what is only known so far, above all libraries and workers.
    """

    phase: Phase
    iteration: int
    bytes: int
    interval_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPhaseStatement:
    """The highest point of one phase of one iteration."""

    phase: Phase
    iteration: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHost:
    """The ranks of one class on a node: how many, and what each holds at its own highest point.

    `resident_bytes` is RSS: with the pages of mapped files and of memory that the node shares, which every rank that
    reads them is charged with; `worker_bytes` are processes of their own.
    """

    representative: int
    count: int
    resident_bytes: int
    worker_bytes: int


def _read_parts(parts: Mapping[str, int]) -> dict[HostCategory, int]:
    return {HostCategory(name): count for name, count in parts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatement:
    """Nodes whose local ranks do the same. `parts` add up to the peak; `file_bytes` are pages of mapped files, which
    the kernel gives back when memory is short, and which are not in the peak."""

    nodes: str
    ranks: str
    peak: HostPeak
    parts: Mapping[HostCategory, int] = field(metadata=shape(write=every(HostCategory), read=_read_parts))
    file_bytes: int
    local_ranks: tuple[RankHost, ...]
    phases: tuple[HostPhaseStatement, ...]

    def verdict(self, capacity_bytes: int) -> str:
        """`exceeds` if the peak is more than there is, `tight` if the interval's upper end or the peak with all mapped
        files is."""
        if self.peak.bytes > capacity_bytes:
            return "exceeds"
        most = max(self.peak.interval_bytes[1], self.peak.bytes + self.file_bytes)
        return "tight" if most > capacity_bytes else "fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatement:
    """All nodes. `capacity_bytes` is 0 where the job does not say what a node has: then nothing is judged."""

    capacity_bytes: int
    nodes: tuple[NodeStatement, ...]
    assumptions: tuple[str, ...]

    @property
    def verdict(self) -> str | None:
        """That of the node that is worst off; None where nothing is judged."""
        if not self.capacity_bytes or not self.nodes:
            return None
        return max((node.verdict(self.capacity_bytes) for node in self.nodes), key=VERDICTS.index)

    @property
    def fullest(self) -> NodeStatement:
        """The node with the highest peak."""
        return max(self.nodes, key=lambda node: node.peak.bytes)

    @property
    def headroom_bytes(self) -> int:
        """What is left on the fullest node, negative if over."""
        return self.capacity_bytes - self.fullest.peak.bytes


def host_to_json(host: HostStatement) -> dict[str, Any]:
    """The `host` object of a plan: plain values, keys in order."""
    judged = host.verdict is not None
    return {
        "verdict": host.verdict,
        "capacity_bytes": host.capacity_bytes if judged else None,
        "headroom_bytes": host.headroom_bytes if judged else None,
        "nodes": [to_plain(node) for node in host.nodes],
        "assumptions": list(host.assumptions),
    }


def host_from_json(document: Mapping[str, Any]) -> HostStatement:
    """What :func:`host_to_json` wrote. Raises PlannerError, KeyError or TypeError for anything else."""
    known = {key: document[key] for key in ("nodes", "assumptions")}
    return from_plain(HostStatement, {**known, "capacity_bytes": document["capacity_bytes"] or 0}, "host")

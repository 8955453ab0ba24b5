"""What the nodes of a job hold at least, and whether that is too much: values, and the `host` object of a plan. Sizes
are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.events import Phase
from planner.host_events import HostCategory
from planner.records import every, shape

HostVerdict = Literal["exceeds", "not_known_to_exceed"]
"""A lower bound alone never says that something fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPeak:
    """What a node holds at least at the highest point of one phase of one iteration."""

    phase: Phase
    iteration: int
    bytes: int


def _read_parts(parts: Mapping[str, int]) -> dict[HostCategory, int]:
    return {HostCategory(name): count for name, count in parts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatement:
    """Nodes whose local ranks do the same. `parts` add up to the peak; of `phases` those are left out that hold what
    the iteration before held."""

    nodes: str
    ranks: str
    peak: HostPeak
    parts: Mapping[HostCategory, int] = field(metadata=shape(write=every(HostCategory), read=_read_parts))
    phases: tuple[HostPeak, ...]

    def bytes_in(self, phase: Phase, iteration: int) -> int:
        """What the node holds at least in that phase; 0 for one that it does not have."""
        so_far = [point for point in self.phases if point.phase is phase and point.iteration <= iteration]
        return max(so_far, key=lambda point: point.iteration).bytes if so_far else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatement:
    """All nodes. `capacity_bytes` is 0 where the job does not say what a node has: then nothing is judged."""

    capacity_bytes: int = field(
        metadata=shape(then="verdict", write=lambda size: size or None, read=lambda size: size or 0)
    )
    nodes: tuple[NodeStatement, ...]
    assumptions: tuple[str, ...]

    @property
    def verdict(self) -> HostVerdict | None:
        """That of the fullest node; None where nothing is judged."""
        if not self.capacity_bytes or not self.nodes:
            return None
        return "exceeds" if self.fullest.peak.bytes > self.capacity_bytes else "not_known_to_exceed"

    @property
    def exceeds(self) -> bool:
        """Whether the fullest node surely needs more than there is; False where nothing is judged."""
        return self.verdict == "exceeds"

    @property
    def fullest(self) -> NodeStatement:
        """The node with the highest peak."""
        return max(self.nodes, key=lambda node: node.peak.bytes)

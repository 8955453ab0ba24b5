"""The trace as a value, for readers that do not make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.events import Event, Repeat, write_out_repeats
from planner.host_events import HostEvent
from planner.rollout.engine_figures import EngineFigures


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did."""

    events: tuple[Event, ...]
    buckets: Mapping[str, Any] = field(default_factory=dict)
    """The account that DDP's reducer gives of itself; empty without DDP."""
    unknown_workspaces: tuple[str, ...] = ()
    """Kernels that take scratch memory of a size that is not known: nothing is counted for them."""
    counted_workspaces: tuple[str, ...] = ()
    """On whose word those of other kernels are counted, as sentences."""
    workspace_margin_bytes: int = 0
    """How much more one of them may take, where it was interpolated between two measured sizes."""
    sharded_dims: tuple[int, ...] = ()
    """Sizes of the dims that are split along `dp_shard`."""
    seconds: float = 0.0
    repeats: tuple[Repeat, ...] = ()
    """Stretches of `events` that happen more often than they are written, in order."""
    parts: tuple[int, ...] = ()
    """For each replica the number of the part of the optimizer that it has; empty where each has all of it."""

    assumed: tuple[str, ...] = ()
    """What was assumed where a GPU would have been timed, as sentences."""
    host: tuple[HostEvent, ...] = ()
    """What the rank holds on the host; of iterations that repeat, those that were run."""
    host_assumed: tuple[str, ...] = ()
    """What of the host could not be found out, as sentences."""

    engine: EngineFigures | None = None
    """Of the inference engine beside the trainer; None without one."""

    def written_out(self) -> tuple[Event, ...]:
        """Everything that happens, one event after the other."""
        return tuple(write_out_repeats(self.events, self.repeats)) if self.repeats else self.events

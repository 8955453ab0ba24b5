"""The statement about a GPU that a trainer shares with an engine: what each holds in each phase, as values and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from planner.events import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPhase:
    """A phase, in the iteration in which most is held; bytes."""

    phase: Phase
    iteration: int
    trainer_bytes: int
    """Reserved by the trainer's allocator, less what follows."""
    reference_bytes: int
    reward_bytes: int
    """Parameters of the models that only run forward, while they are on the device."""
    outside_bytes: int
    """Of the trainer's process outside of its allocator."""
    engine_weights_bytes: int
    engine_kv_cache_bytes: int
    engine_activation_bytes: int
    engine_outside_bytes: int
    """CUDA graphs, NCCL, what its process takes outside of torch."""
    total_bytes: int
    interval_bytes: tuple[int, int]

    @property
    def engine_bytes(self) -> int:
        """All of the engine."""
        return (
            self.engine_weights_bytes
            + self.engine_kv_cache_bytes
            + self.engine_activation_bytes
            + self.engine_outside_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """All phases in their order, the engine, and the largest shares."""

    phases: tuple[SharedPhase, ...]
    utilization: float
    """The share that was planned."""
    solved: bool
    """Whether the job left it to be found."""
    kv_blocks: int
    kv_tokens: int
    kv_block_bytes: int
    largest_safe_utilization: float
    """The largest, in steps of 0.01, of which the plan says that it fits; 0: none."""
    largest_utilization: float
    """The largest that does not exceed, though it may be tight; 0: none."""
    kept: tuple[str, ...]
    """Where it exceeds: who does not give way, as sentences."""
    assumed: tuple[str, ...]

    def fullest(self) -> SharedPhase:
        """The phase in which most is held."""
        return max(self.phases, key=lambda each: each.total_bytes)


def to_json(shared: SharedGpu) -> dict[str, Any]:
    """Plain values, keys in the order of the fields."""
    about = {each.name: getattr(shared, each.name) for each in fields(shared) if each.name != "phases"}
    rows = [
        {
            **{each.name: getattr(row, each.name) for each in fields(row)},
            "phase": row.phase.value,
            "interval_bytes": list(row.interval_bytes),
        }
        for row in shared.phases
    ]
    return {"phases": rows, **about, "kept": list(shared.kept), "assumed": list(shared.assumed)}


def from_json(document: Mapping[str, Any]) -> SharedGpu:
    """What :func:`to_json` wrote."""
    rows = tuple(
        SharedPhase(**{**row, "phase": Phase(row["phase"]), "interval_bytes": tuple(row["interval_bytes"])})
        for row in document["phases"]
    )
    about = {**document, "phases": rows, "kept": tuple(document["kept"]), "assumed": tuple(document["assumed"])}
    return SharedGpu(**about)

"""The list: everything inside other packages that planner replaces, overrides, calls by a private name or mirrors."""

from __future__ import annotations

from planner.upstream import libraries, torch_checkpoints, torch_compile, torch_device, torch_distributed
from planner.upstream.entries import Entry, Kind

TABLE: tuple[Entry, ...] = (
    *torch_device.CUDA_FACE,
    *torch_device.CPU_TARGET,
    *torch_device.PRIVATE,
    *torch_device.MEASURED_PROGRAMS,
    *torch_device.PROGRAMS,
    *torch_distributed.ABSENT_PEERS,
    *torch_distributed.PROGRAM_PEERS,
    *torch_distributed.COLLECTIVES,
    *torch_distributed.DTENSOR_SPEED,
    *torch_distributed.FSDP2,
    *torch_distributed.DDP,
    *torch_distributed.PIPELINES,
    *torch_checkpoints.CHECKPOINTS,
    *torch_compile.INDUCTOR,
    *libraries.TRANSFORMERS,
    *libraries.DEEPSPEED,
    *libraries.PROGRAM_HOST,
    *libraries.OUTSIDE,
)


def patches(group: str) -> tuple[Entry, ...]:
    """The patches that are applied together."""
    return tuple(entry for entry in TABLE if entry.kind is Kind.PATCH and entry.group == group)


def groups() -> tuple[str, ...]:
    """The names of all groups of patches, in the order of the table."""
    return tuple(dict.fromkeys(entry.group for entry in TABLE if entry.kind is Kind.PATCH))

"""Everything inside other packages that planner replaces, overrides, calls privately or mirrors; applies patches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from planner.errors import TraceError
from planner.upstream import libraries, torch_compile, torch_device, torch_distributed
from planner.upstream.entries import Entry, Kind

TABLE: tuple[Entry, ...] = (
    *torch_device.PRIVATE,
    *torch_device.ON_CUDA,
    *torch_device.MEASURED_PROGRAMS,
    *torch_device.PROGRAMS,
    *torch_distributed.ABSENT_PEERS,
    *torch_distributed.PROGRAM_PEERS,
    *torch_distributed.COLLECTIVES,
    *torch_distributed.DTENSOR_SPEED,
    *torch_distributed.FSDP1,
    *torch_distributed.FSDP2,
    *torch_distributed.DDP,
    *torch_distributed.PIPELINES,
    *torch_distributed.CHECKPOINTS,
    *torch_compile.INDUCTOR,
    *libraries.TRANSFORMERS,
    *libraries.DEEPSPEED,
    *libraries.PROGRAM_HOST,
    *libraries.OUTSIDE,
)


@cache
def _group_patches(group: str) -> Mapping[str, Entry]:
    """By target: a traced step asks for thousands."""
    return {entry.target: entry for entry in TABLE if entry.kind is Kind.PATCH and entry.group == group}


Wrapper = Callable[[Any], Any]


@contextmanager
def patch_targets(
    group: str, *, replaced: Mapping[str, Any] | None = None, wrapped: Mapping[str, Wrapper] | None = None
) -> Iterator[None]:
    """Inside, every target of the table's `group` is another one; afterwards all are as before.

    `replaced`: what stands for a target. `wrapped`: a function that makes it from the target. Both are keyed by
    targets, and together name those of the group, no more and no fewer. Raises TraceError for a target that is not
    there, and ValueError for keys that are not those of the group.
    """
    from unittest import mock  # whose import takes longer than a stored plan

    given, expected = {**(replaced or {}), **(wrapped or {})}, _group_patches(group)
    if given.keys() != expected.keys():
        raise ValueError(f"patches of {group!r} differ from the table: {sorted(given.keys() ^ expected.keys())}")
    with ExitStack() as stack:
        for target, entry in expected.items():
            try:
                owner, name = _find_owner(entry)
            except ImportError as failure:
                if entry.optional:
                    continue
                raise TraceError(
                    f"{entry.module} cannot be imported, of which planner replaces {entry.name} ({entry.why}):"
                    f" {failure}",
                    remedy="install what it imports where planner runs",
                ) from failure
            if owner is None or not hasattr(owner, name):
                if entry.optional:
                    continue
                raise TraceError(
                    f"{entry.package} has no {target.replace(':', '.')}, which planner replaces: {entry.why}",
                    remedy=f"install a version of {entry.package} that planner knows (docs/torch.md)",
                )
            new = wrapped[target](getattr(owner, name)) if wrapped and target in wrapped else given[target]
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def _find_owner(entry: Entry) -> tuple[Any, str]:
    """The module or class that has the target, imported where it has to be, and the target's name in it.

    None for an owner that is not there. Raises ImportError for a module that is there and lacks something itself.
    """
    *path, name = entry.name.split(".")
    try:
        owner: Any = importlib.import_module(entry.module)
    except ModuleNotFoundError as failure:
        if not f"{entry.module}.".startswith(f"{failure.name}."):
            raise
        return None, name
    for part in path:
        owner = getattr(owner, part, None)
    return owner, name

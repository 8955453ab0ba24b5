"""What a piece of a program allocates on the paper GPU, told apart by what is kept and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import planner.paper as paper
from planner.events import Alloc, Free

pytest.register_assert_rewrite("cpu_runs")


@dataclass(frozen=True)
class Taken:
    """Allocations in order, as (shape, dtype); those that were given back before the end are `temporary`."""

    kept: Sequence[tuple[tuple[int, ...], str]]
    temporary: Sequence[tuple[tuple[int, ...], str]]
    kept_bytes: Sequence[int]
    temporary_bytes: Sequence[int]
    unknown_workspaces: tuple[str, ...]


@pytest.fixture
def taken() -> Callable[..., Taken]:
    """`taken(make, run, target)`: what `run(*make())` allocates, beyond what `make` did."""

    def measure(make: Callable[[], Sequence[Any]], run: Callable[..., Any], target: str = "sm_90") -> Taken:
        with paper.gpu(target) as gpu:
            made = make()
            before = len(gpu.recorder.events())
            kept = run(*made)
            events = gpu.recorder.events()[before:]
            unknown = gpu.unknown_workspaces()
        del kept
        freed = {event.block for event in events if isinstance(event, Free)}
        allocs = [event for event in events if isinstance(event, Alloc)]
        staying = [event for event in allocs if event.block not in freed]
        going = [event for event in allocs if event.block in freed]
        return Taken(
            kept=[(event.origin.shape, event.origin.dtype) for event in staying if event.origin],
            temporary=[(event.origin.shape, event.origin.dtype) for event in going if event.origin],
            kept_bytes=[event.requested_bytes for event in staying],
            temporary_bytes=[event.requested_bytes for event in going],
            unknown_workspaces=unknown,
        )

    return measure

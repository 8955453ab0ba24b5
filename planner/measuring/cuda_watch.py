"""Watches a step on a real GPU: the allocator's own peaks from mark to mark, and the driver's figure at each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from planner.events import Category, Phase
from planner.measuring.measured_phases import Phases
from planner.measuring.measurement import Levels, MeasuredPhase


class CudaWatch:
    """An observer of a step on `device`; it allocates nothing there. `end()` closes the last phase."""

    def __init__(self, device: torch.device, device_bytes: Callable[[], int]) -> None:
        """`device_bytes` says what the driver counts for this process."""
        self._device = device
        self._device_bytes = device_bytes
        self._phases = Phases()
        self._now: tuple[Phase, int] = (Phase.LOAD, 0)
        self._named: dict[tuple[Category, str], tuple[int, int]] = {}
        self.marks: list[tuple[str, int, int]] = []

    @property
    def now(self) -> tuple[Phase, int]:
        """The phase that is running, and its iteration."""
        return self._now

    def mark(self, phase: Phase, iteration: int) -> None:
        if self.marks:
            self._close()
        torch.cuda.reset_peak_memory_stats(self._device)
        self.marks.append((phase.value, iteration, time.time_ns() // 1000))
        self._now = (phase, iteration)

    def end(self) -> None:
        """The last phase has ended, or memory ran out in it."""
        self._close()

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device.type == "cuda":
            storage = local.untyped_storage()
            self._named[(category, name)] = (storage.data_ptr(), storage.nbytes())

    @contextmanager
    def region(self, category: Category, name: str = "") -> Iterator[None]:  # noqa: ARG002
        yield

    def phases(self) -> tuple[MeasuredPhase, ...]:
        return self._phases.all()

    def categories(self) -> dict[str, int]:
        """Bytes of the storages that were named, each counted once; those of gradients are of their last set."""
        storages: dict[Category, dict[int, int]] = {}
        for (category, _), (address, size) in self._named.items():
            storages.setdefault(category, {})[address] = size
        return {category.value: sum(found.values()) for category, found in sorted(storages.items())}

    def _close(self) -> None:
        stats = torch.cuda.memory_stats(self._device)
        peak, end = (_levels(stats, which) for which in ("peak", "current"))
        self._phases.add(*self._now, peak, end, self._device_bytes())


def _levels(stats: dict[str, int], which: str) -> Levels:
    return Levels(
        requested_bytes=stats[f"requested_bytes.all.{which}"],
        allocated_bytes=stats[f"allocated_bytes.all.{which}"],
        active_bytes=stats[f"active_bytes.all.{which}"],
        reserved_bytes=stats[f"reserved_bytes.all.{which}"],
    )

"""What the report reads of a replay's timeline; `planner.allocator.timeline.Timeline` is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Timeline(Protocol):
    """The allocator's state over a sequence of events: entry i is the state after event i, sizes in bytes.

    A replay that ran out of memory is shorter than its events.
    """

    @property
    def requested_bytes(self) -> Sequence[int]: ...
    @property
    def allocated_bytes(self) -> Sequence[int]: ...
    @property
    def active_bytes(self) -> Sequence[int]: ...
    @property
    def reserved_bytes(self) -> Sequence[int]: ...
    @property
    def block_bytes(self) -> Mapping[int, int]:
        """The size of the block handed out for each allocation, slack included."""

    @property
    def block_addresses(self) -> Mapping[int, int]: ...
    @property
    def cache_releases(self) -> int:
        """How often the cache had to be given back to the device before an allocation succeeded."""

    @property
    def out_of_memory(self) -> Any:
        """What was asked for when no memory was left; None if there was always some."""

"""Pinned memory as torch's CachingHostAllocator takes it: rounded, never split, and kept when it is given up.

torch 2.13, ATen/core/CachingHostAllocator.h: `allocate` rounds a request up to a power of two and looks for a free
block of that size alone (`get_free_block`); `maybe_cache_block` keeps what is freed. A block is taken again once the
copies out of it have passed, which is taken to be so by the next request.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from planner.errors import AllocatorConfError
from planner.units import MIB

_ROUND, _CACHE = "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"
_RESERVE = "pinned_reserve_segment_size_mb"
_OPTION = re.compile(rf"({_ROUND}|{_CACHE}|{_RESERVE}):([^,]*)")
_UNLIMITED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class PinnedRules:
    """Settings of the allocator; the defaults are torch's (c10/core/AllocatorConfig.h): no limits."""

    largest_rounded_bytes: int = _UNLIMITED
    """`pinned_max_round_threshold_mb`: what is larger is taken as it is."""
    largest_kept_bytes: int = _UNLIMITED
    """`pinned_max_cached_size_mb`: what is larger is given back when it is freed, and not rounded."""
    reserved_bytes: int = 0
    """`pinned_reserve_segment_size_mb`: a segment that is taken at first use; what is asked for comes out of it."""

    @classmethod
    def from_conf(cls, conf: str) -> PinnedRules:
        """What `PYTORCH_ALLOC_CONF` says of pinned memory. Raises AllocatorConfError for what is no number."""
        said = {name: _megabytes(name, value) for name, value in _OPTION.findall("".join(conf.split()))}
        return cls(said.get(_ROUND, _UNLIMITED), said.get(_CACHE, _UNLIMITED), said.get(_RESERVE, 0))

    def block_bytes(self, requested_bytes: int) -> int:
        """What is taken for a request: `size <= threshold && size <= cached` rounds up (`allocate`)."""
        if requested_bytes <= 0:
            return 0
        if requested_bytes <= min(self.largest_rounded_bytes, self.largest_kept_bytes):
            return 1 << (requested_bytes - 1).bit_length()
        return requested_bytes


class PinnedMemory:
    """The pinned memory of one process: what is in use, and what is taken from the system for it."""

    def __init__(self, rules: PinnedRules) -> None:
        self._rules = rules
        self._free: Counter[int] = Counter()
        self.taken_bytes = 0
        self.used_bytes = 0

    def take(self, requested_bytes: int, count: int = 1) -> int:
        """The bytes of each of so many blocks: those that were given up, and then new ones."""
        size = self._rules.block_bytes(requested_bytes)
        again = min(self._free[size], count)
        self._free[size] -= again
        self.taken_bytes += size * (count - again)
        self.used_bytes += size * count
        return size

    def give_up(self, block_bytes: int, count: int = 1) -> None:
        """The blocks are free; only what is too large to be kept goes back to the system."""
        self.used_bytes -= block_bytes * count
        if block_bytes > self._rules.largest_kept_bytes:
            self.taken_bytes -= block_bytes * count
        else:
            self._free[block_bytes] += count

    @property
    def held_bytes(self) -> int:
        """What the process holds: what was taken, and at least the reserved segment once anything was."""
        return max(self.taken_bytes, self._rules.reserved_bytes) if self.taken_bytes else 0


def _megabytes(option: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise AllocatorConfError(
            f"{option}: {value[:40]!r} is no whole number", allowed="megabytes, such as 64", place="PYTORCH_ALLOC_CONF"
        )
    return int(value) * MIB

"""Every constant of the caching allocator, in one place, with where it stands upstream.

Read in PyTorch's main line between 2.6 and 2.13; the block sizes and the options are checked against the headers
that torch 2.13.0 installs (c10/core/AllocatorConfig.h, c10/cuda/CUDAAllocatorConfig.h), the algorithm against
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.allocator.conf import POWER_OF_TWO_INTERVALS, read_conf, too_small
from planner.units import MIB


@dataclass(frozen=True, slots=True)
class Rules:
    """How the allocator behaves; the defaults are those of torch 2.13 without `PYTORCH_ALLOC_CONF`."""

    minimum_block_bytes: int = 512
    """Sizes are whole multiples of it. kMinBlockSize, c10/core/AllocatorConfig.h."""
    small_bytes: int = MIB
    """Up to here a block comes from the small pool. kSmallSize, c10/core/AllocatorConfig.h."""
    small_segment_bytes: int = 2 * MIB
    """Size of a segment of the small pool, and its page when segments expand. kSmallBuffer, same header."""
    minimum_large_bytes: int = 10 * MIB
    """From here on a block gets a segment of its own size. kMinLargeAlloc, same header."""
    large_segment_bytes: int = 20 * MIB
    """Segment for large blocks below `minimum_large_bytes`, and the large pool's page when segments expand.
    `large_segment_size_mb`, AcceleratorAllocatorConfig::large_segment_size."""
    round_large_bytes: int = 2 * MIB
    """Segments for one block are multiples of it. kRoundLarge, c10/core/AllocatorConfig.h."""
    largest_unsplit_rest_bytes: int = MIB
    """In the large pool a rest is cut off only if it is larger. should_split, CUDACachingAllocator.cpp."""
    expandable_segments: bool = False
    """`expandable_segments`: one growing segment per stream and pool."""
    max_split_bytes: int | None = None
    """`max_split_size_mb`: blocks of at least this size are not cut; None: no limit."""
    max_non_split_rounding_bytes: int = 20 * MIB
    """`max_non_split_rounding_mb`: how much larger than asked an uncut block may be."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * POWER_OF_TWO_INTERVALS
    """`roundup_power2_divisions`: into how many steps each power-of-two interval is divided; 0 and 1: off."""
    garbage_collection_threshold: float = 0.0
    """`garbage_collection_threshold`: share of the allowed memory above which old cached blocks are freed; 0: off.
    Works only together with a fraction below 1, as upstream."""
    per_process_memory_fraction: float = 1.0
    """`per_process_memory_fraction`: share of the device that the process may take; 1: no limit."""
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    """Options that were given, are understood, and change nothing about device memory."""

    @classmethod
    def from_conf(cls, conf: str) -> Rules:
        """The rules under `PYTORCH_ALLOC_CONF=conf`; empty: the defaults.

        Raises AllocatorConfError for unknown options, values that torch refuses, and what is not modelled.
        """
        read = read_conf(conf)
        rules = replace(cls(), **read.changes, without_effect=read.without_effect)
        large = rules.large_segment_bytes
        if large <= rules.minimum_large_bytes:
            raise too_small("large_segment_size_mb", large, rules.minimum_large_bytes + MIB)
        if rules.max_split_bytes is not None and rules.max_split_bytes < large:
            raise too_small("max_split_size_mb", rules.max_split_bytes, large)
        if "max_non_split_rounding_bytes" in read.changes and rules.max_non_split_rounding_bytes < large:
            raise too_small("max_non_split_rounding_mb", rules.max_non_split_rounding_bytes, large)
        return rules

    def round_size(self, requested_bytes: int) -> int:
        """Size of the block looked for. round_size and roundup_power2_next_division, CUDACachingAllocator.cpp."""
        unit = self.minimum_block_bytes
        if requested_bytes < unit:
            return unit
        divisions = self._divisions(requested_bytes)
        if divisions > 1 and requested_bytes > unit * divisions:
            return _next_division(requested_bytes, divisions)
        return -(-requested_bytes // unit) * unit

    def segment_size(self, block_bytes: int) -> int:
        """Bytes asked of the device for a block that no cached one fits. get_allocation_size, same file."""
        if block_bytes <= self.small_bytes:
            return self.small_segment_bytes
        if block_bytes < self.minimum_large_bytes:
            return self.large_segment_bytes
        return -(-block_bytes // self.round_large_bytes) * self.round_large_bytes

    def page_bytes(self, small: bool) -> int:
        """Granularity in which an expandable segment grows and shrinks. find_expandable_block, same file."""
        return self.small_segment_bytes if small else self.large_segment_bytes

    def _divisions(self, size: int) -> int:
        interval = size.bit_length() - 1 - 20  # 2**20 is 1 MiB, the start of the first interval
        return self.roundup_power2_divisions[min(max(interval, 0), POWER_OF_TWO_INTERVALS - 1)]


def _next_division(size: int, divisions: int) -> int:
    power = 1 << (size.bit_length() - 1)
    if size == power:
        return size
    step = power >> (divisions.bit_length() - 1)
    if step == 0:
        return power << 1
    return -(-size // step) * step

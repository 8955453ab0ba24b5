"""What `torch.cuda.memory_snapshot` returns, of the modelled allocator: its segments, with the blocks in them.

Keys as torch/csrc/cuda/Module.cpp (torch 2.13, THCPModule_memorySnapshot) has them. There are no stacks, and no history
of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from planner.allocator.blocks import Block
from planner.allocator.caching import CachingAllocator


def snapshot_of(allocator: CachingAllocator, devices: int) -> dict[str, Any]:
    """Of an expandable segment every mapped stretch is one, as torch has it."""
    waiting = {id(each) for each in allocator.waiting()}
    return {
        "segments": [_segment(blocks, waiting) for blocks in _stretches(allocator)],
        "device_traces": [[] for _ in range(devices)],
        "allocator_settings": {"expandable_segments": allocator.rules.expandable_segments},
        "external_annotations": [],
    }


def _stretches(allocator: CachingAllocator) -> Iterator[list[Block]]:
    whole = groupby(allocator.blocks(), lambda block: (block.segment.address, block.mapped))
    return (list(blocks) for (_, mapped), blocks in whole if mapped)


def _segment(blocks: list[Block], waiting: set[int]) -> dict[str, Any]:
    first = blocks[0]
    used = [each for each in blocks if not each.free]
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(each.size for each in blocks),
        "allocated_size": sum(each.size for each in used if id(each) not in waiting),
        "active_size": sum(each.size for each in used),
        "requested_size": sum(each.requested for each in used),
        "stream": first.pool.stream,
        "segment_type": "small" if first.pool.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": first.segment.expandable,
        "frames": [],
        "blocks": [_block(each, is_waiting=id(each) in waiting) for each in blocks],
    }


def _block(block: Block, *, is_waiting: bool) -> dict[str, Any]:
    used = "active_awaiting_free" if is_waiting else "active_allocated"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": 0 if block.free else block.requested,
        "state": "inactive" if block.free else used,
        "frames": [],
    }

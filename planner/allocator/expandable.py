"""Expandable segments: one range of addresses per stream and pool, into which memory is mapped page by page.

After ExpandableSegment, find_expandable_block, try_allocate_expandable_block, map_block and unmap_block in
c10/cuda/CUDACachingAllocator.cpp (torch 2.13).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from planner.allocator.blocks import ADDRESS_BITS, ADDRESS_MASK, Block, Device, Pool, Segment, join, split_block
from planner.allocator.rules import Rules
from planner.units import TIB


class ExpandableSegments:
    """Grows and shrinks the ranges of one device; `account` is told by how much the reserved bytes change, and how many
    ranges more there are.

    `device_bytes` decides how long a range is (9/8 of the device, as upstream); unknown: longer than any GPU.
    """

    def __init__(
        self, rules: Rules, device: Device, device_bytes: int | None, account: Callable[[int, int], None]
    ) -> None:
        self._rules = rules
        self._device = device
        self._account = account
        self._length = TIB if device_bytes is None else device_bytes + device_bytes // 8

    def best_fit(self, pool: Pool, size: int) -> int:
        """Place in `pool.keys` of the free block for `size`, -1 if there is none.

        A block at the end of the mapped part counts as large as it can become, so that blocks which fit without
        growing are used first.
        """
        keys, at = pool.keys, pool.at
        index, count = bisect_left(keys, size << ADDRESS_BITS), len(keys)
        if not self._rules.expandable_segments:
            while index < count and at[keys[index] & ADDRESS_MASK].segment.expandable:
                index += 1
        if index == count:
            return -1
        block = at[keys[index] & ADDRESS_MASK]
        while block.segment.expandable and index + 1 < count:
            following = block.after
            if following is None or following.mapped:
                # It cannot grow, and whatever comes next in the list is at least as large.
                break
            other = at[keys[index + 1] & ADDRESS_MASK]
            if _possible_size(other) >= block.size + following.size:
                break
            block, index = other, index + 1
        return index

    def grow(self, pool: Pool, size: int) -> Block | None:
        """Maps memory until a free block holds `size`, and takes it; None if the device has not enough."""
        block = self._candidate(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.after
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.take(block)
        return block

    def shrink(self, block: Block) -> None:
        """Unmaps the whole pages inside a free block."""
        segment, pool = block.segment, block.pool
        page = self._rules.page_bytes(pool.small)
        start = segment.address + -(-(block.address - segment.address) // page) * page
        end = segment.address + (block.address + block.size - segment.address) // page * page
        if start >= end:
            return
        pool.take(block)
        if start > block.address:
            rest = split_block(block, start - block.address)
            pool.put(block)
            block = rest
        if end < block.address + block.size:
            pool.put(split_block(block, end - start))
        self._device.unmap(start, end - start)
        self._account(start - end, 0)
        segment.mapped_bytes -= end - start
        block.mapped = False
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.mapped:
                del pool.unmapped[neighbour.address]
                join(block, neighbour)
        if block.alone:
            self._account(0, -1)
        else:
            pool.unmapped[block.address] = block

    def _candidate(self, pool: Pool, size: int) -> Block:
        """The lowest address at which free and unmapped blocks in a row make room for `size`."""
        for address in sorted(pool.unmapped):
            block = pool.unmapped[address]
            if block.before is not None and block.before.free:
                block = block.before
            if _room(block, size):
                return block
        page = self._rules.page_bytes(pool.small)
        length = -(-max(self._length, size) // page) * page  # on a device without an end a block may be of any size
        address = self._device.reserve_range(length)
        block = pool.unmapped[address] = Block(address, length, pool, Segment(address, length, expandable=True))
        block.mapped = False
        self._account(0, 1)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Puts memory under the first `size` bytes of an unmapped block, rounded up to whole pages."""
        pool, segment = block.pool, block.segment
        page = self._rules.page_bytes(pool.small)
        mapped = -(-size // page) * page
        if not self._device.map(block.address, mapped):
            return False
        del pool.unmapped[block.address]
        block.mapped = True
        if mapped < block.size:
            rest = split_block(block, mapped)
            rest.mapped = False
            pool.unmapped[rest.address] = rest
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                pool.take(neighbour)
                join(block, neighbour)
        pool.put(block)
        segment.mapped_bytes += mapped
        self._account(mapped, 0)
        return True


def _possible_size(block: Block) -> int:
    following = block.after
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _room(block: Block, size: int) -> bool:
    room, following = 0, block
    while room < size:
        room += following.size
        if room >= size or following.after is None:
            break
        following = following.after
        if not following.free and following.mapped:
            break
    return room >= size

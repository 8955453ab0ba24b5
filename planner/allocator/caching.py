"""The caching allocator: cuts segments into blocks, hands them out, joins them again, gives memory back.

After DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp (torch 2.13). Private pools are those of CUDA graphs:
they have segments of their own, which stay as long as a graph does, that is here to the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from planner.allocator.blocks import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    Block,
    Device,
    Pool,
    Segment,
    StartSegment,
    join,
    split_block,
)
from planner.allocator.expandable import ExpandableSegments
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use


class CachingAllocator:
    """The state of one device's allocator; every number is bytes unless its name says otherwise.

    `device_bytes` is the device's total, of which `per_process_memory_fraction` allows a share; default: the
    device's capacity. Blocks are named by the integers of the events.
    """

    def __init__(self, rules: Rules, device: Device, device_bytes: int | None = None) -> None:
        self.rules = rules
        self.device = device
        self.requested = 0
        self.allocated = 0
        self.active = 0
        self.reserved = 0
        self.segments = 0
        self.peak_reserved = 0
        self.cache_releases = 0
        """How often cached memory had to be given back before an allocation could go on."""
        total = device_bytes if device_bytes is not None else device.capacity_bytes
        self.allowed: int | None = None
        """Most bytes that the process may reserve; None: what the device has."""
        if total is not None and rules.per_process_memory_fraction < 1.0:
            self.allowed = int(rules.per_process_memory_fraction * total)
        self._expandable = ExpandableSegments(rules, device, total, self._account)
        self._sizes: dict[int, int] = {}
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._private: dict[tuple[int, int, bool], Pool] = {}
        self._live: dict[int, Block] = {}
        self._waiting: dict[int, Block] = {}
        self._used_elsewhere: dict[int, Block] = {}
        self._collects = self.allowed is not None and rules.garbage_collection_threshold > 0.0
        self._lookups = 0
        self._plain = not (rules.expandable_segments or rules.max_split_bytes is not None or self._collects)

    def malloc(self, name: int, requested: int, stream: int = 0, private: int = 0) -> Block | None:
        """The block for `requested` bytes, in the private pool of that number if it is not 0; None if the memory does
        not suffice even after releasing the cache."""
        if requested == 0:  # c10::cuda::CUDACachingAllocator::allocate asks for nothing then
            return self._nothing(name, stream)
        size = self._sizes.get(requested)
        if size is None:
            size = self._sizes[requested] = self.rules.round_size(requested)
        rules = self.rules
        pool = self._pools.get((stream, size <= rules.small_bytes)) if not private else None
        if pool is None:
            pool = self.pool(stream, size <= rules.small_bytes, private)
        block: Block | None
        if self._plain:
            keys = pool.keys
            index = bisect_left(keys, size << ADDRESS_BITS)
            if index < len(keys):
                block = pool.at.pop(keys.pop(index) & ADDRESS_MASK)
                block.free = False
            else:
                block = self._new_block(pool, size)
        else:
            block = self._fitting(pool, size) or self._new_block(pool, size)
        if block is None:
            return None
        if block.size != size and self._cuts(pool, size, block.size - size):
            rest = split_block(block, size)
            rest.born = self._lookups
            pool.put(rest)
        block.requested = requested
        self._live[name] = block
        self.requested += requested
        self.allocated += block.size
        self.active += block.size
        return block

    def free(self, name: int) -> None:
        """Takes a block back; it waits if another stream still uses it."""
        block = self._live.pop(name)
        self.allocated -= block.size
        if block.uses is not None:
            del self._used_elsewhere[name]
            self._waiting[name] = block
            return
        self._settle(block)

    def use(self, name: int, stream: int) -> None:
        """Notes that another stream uses the block (recordStream); uses on its own stream mean nothing."""
        block = self._live[name]
        if stream == block.pool.stream or block.size == 0:
            return
        if block.uses is None:
            block.uses = set()
            self._used_elsewhere[name] = block
        block.uses.add(stream)

    def complete_free(self, name: int) -> None:
        """Every use of the block has passed; if it was waiting, it is free now."""
        block = self._waiting.pop(name, None)
        if block is not None:
            self._settle(block)
        elif self._used_elsewhere.pop(name, None) is not None:
            self._live[name].uses = None

    def take(self, event: Event) -> bool:
        """What one event asks for; False if there was no memory for it. Marks and roles ask for nothing."""
        if isinstance(event, Alloc):
            return self.malloc(event.block, event.requested_bytes, event.stream, event.pool) is not None
        if isinstance(event, Free):
            self.free(event.block)
        elif isinstance(event, Use):
            self.use(event.block, event.stream)
        elif isinstance(event, FreeCompleted):
            self.complete_free(event.block)
        elif isinstance(event, Synchronize):
            self.synchronize()
        elif isinstance(event, EmptyCache):
            self.empty_cache()
        return True

    def synchronize(self) -> None:
        """Every use of every block has passed."""
        for block in self._used_elsewhere.values():
            block.uses = None
        self._used_elsewhere.clear()
        self._settle_waiting()

    def empty_cache(self) -> None:
        """Gives back every segment, or page of one, in which no block is used (release_cached_blocks); private pools
        keep theirs."""
        self._settle_waiting()
        for small in (False, True):
            for pool in [pool for (_, is_small), pool in sorted(self._pools.items()) if is_small == small]:
                for block in pool.free_blocks():
                    if block.segment.expandable:
                        self._expandable.shrink(block)
                    elif block.alone:
                        self._release(block)

    def pool(self, stream: int, small: bool, private: int = 0) -> Pool:
        """The pool of a stream, made on its first use (get_pool)."""
        if private:
            return self._private.setdefault((private, stream, small), Pool(stream, small, private))
        return self._pools.setdefault((stream, small), Pool(stream, small))

    def pools(self, *, small: bool) -> list[Pool]:
        """Those of small blocks, or of large ones, of all streams."""
        return [pool for (_, is_small), pool in self._pools.items() if is_small == small]

    def state(self) -> tuple[object, ...] | None:
        """All that decides what comes of further events, but for the names of blocks; None if their age does too."""
        if self._collects:
            return None
        blocks = [
            (block.address, block.size, 0 if block.free else block.requested, block.free, block.mapped,
             block.pool.stream, block.pool.small, block.pool.private, frozenset(block.uses or ()))
            for block in self.blocks()
        ]  # fmt: skip
        return (blocks, self.active, self.allocated, *self.device.state())

    def blocks(self) -> Iterator[Block]:
        """Every block of every segment, segment by segment in order of address, each segment from its start."""
        heads: dict[int, Block] = {}
        used = [*self._live.values(), *self._waiting.values()]
        for pool in (*self._pools.values(), *self._private.values()):
            used += [*pool.at.values(), *pool.unmapped.values()]
        for block in used:
            if block.size and block.before is None:
                heads[block.address] = block
        for address in sorted(heads):
            following: Block | None = heads[address]
            while following is not None:
                yield following
                following = following.after

    def held(self) -> Iterator[tuple[int, int]]:
        """The name and size of every block that is handed out."""
        return ((name, block.size) for name, block in self._live.items())

    def waiting(self) -> list[Block]:
        """Blocks that were given up, and are still used on another stream."""
        return list(self._waiting.values())

    def adopt(self, segment: StartSegment) -> None:
        """Takes over a segment that exists already, with the blocks in it."""
        pool = self.pool(segment.stream, segment.small)
        home = Segment(segment.address, segment.size, segment.expandable)
        address, before = segment.address, None
        for stretch in segment.stretches:
            block = Block(address, stretch.size, pool, home)
            block.before = before
            if before is not None:
                before.after = block
            address, before = address + stretch.size, block
            if not stretch.mapped:
                block.mapped = False
                pool.unmapped[block.address] = block
                continue
            home.mapped_bytes += stretch.size
            if stretch.block is None:
                pool.put(block)
                continue
            block.requested = stretch.requested_bytes
            self.requested += stretch.requested_bytes
            self.active += stretch.size
            if stretch.waiting:
                self._waiting[stretch.block] = block
            else:
                self._live[stretch.block] = block
                self.allocated += stretch.size
        if segment.expandable:
            self._plain = False
        self.device.taken_bytes += home.mapped_bytes
        self._account(home.mapped_bytes, 1)

    def _nothing(self, name: int, stream: int) -> Block:
        block = Block(0, 0, self.pool(stream, True), Segment(0, 0))
        self._live[name] = block
        return block

    def _cuts(self, pool: Pool, size: int, rest: int) -> bool:
        """should_split: whether the rest of a block becomes a block of its own."""
        rules = self.rules
        if pool.small or rules.expandable_segments:
            return rest >= rules.minimum_block_bytes
        limit = rules.max_split_bytes
        return rest > rules.largest_unsplit_rest_bytes and (limit is None or size < limit)

    def _fitting(self, pool: Pool, size: int) -> Block | None:
        """get_free_block: the smallest free block that fits, where options other than the default look further."""
        if self._collects and not pool.small:
            self._lookups += 1
        index = self._expandable.best_fit(pool, size)
        if index < 0:
            return None
        block = pool.at[pool.keys[index] & ADDRESS_MASK]
        limit = self.rules.max_split_bytes
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.rules.max_non_split_rounding_bytes:
                return None
        del pool.keys[index], pool.at[block.address]
        block.free = False
        return block

    def _new_block(self, pool: Pool, size: int) -> Block | None:
        """Asks the device; under pressure first gives back a large cached block, then the whole cache, but not while
        something is captured or warmed up for a CUDA graph."""
        if self._collects:
            self._collect_garbage()
        wanted = self.rules.segment_size(size)
        block = self._ask_device(pool, size, wanted)
        if block is not None:
            return block
        before = self.reserved
        if self.rules.max_split_bytes is not None and self._release_oversize(pool, size):
            block = self._ask_device(pool, size, wanted)
        if block is None and pool.private:
            return None
        if block is None:
            self.empty_cache()
            released = before - self.reserved
            block = self._ask_device(pool, size, wanted)
        else:
            released = 1
        self.cache_releases += released > 0
        return block

    def _ask_device(self, pool: Pool, size: int, wanted: int) -> Block | None:
        """alloc_block."""
        if self.allowed is not None and self.reserved + wanted > self.allowed:
            return None
        if self.rules.expandable_segments:
            return self._expandable.grow(pool, size)
        address = self.device.take(wanted)
        if address is None:
            return None
        self._account(wanted, 1)
        return Block(address, wanted, pool, Segment(address, wanted, mapped_bytes=wanted))

    def _account(self, change: int, segments: int) -> None:
        self.reserved += change
        self.segments += segments
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved

    def _settle(self, block: Block) -> None:
        """free_block: joins the block with its free neighbours and puts it into its pool."""
        self.active -= block.size
        self.requested -= block.requested
        if block.size == 0:
            return
        block.uses = None
        pool = block.pool
        neighbour = block.before
        if neighbour is not None and neighbour.free:
            pool.take(neighbour)
            join(block, neighbour)
        neighbour = block.after
        if neighbour is not None and neighbour.free:
            pool.take(neighbour)
            join(block, neighbour)
        block.born = self._lookups
        pool.put(block)

    def _settle_waiting(self) -> None:
        for block in self._waiting.values():
            self._settle(block)
        self._waiting.clear()

    def _release(self, block: Block) -> None:
        """release_block: a segment goes back to the device."""
        block.pool.take(block)
        self.device.give_back(block.address, block.size)
        self._account(-block.size, -1)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """release_available_cached_blocks: with `max_split_size_mb`, one or more of the blocks that are never cut."""
        limit = self.rules.max_split_bytes or 0
        needed = max(size, limit)
        blocks = pool.free_blocks()
        index = bisect_left(pool.keys, needed << ADDRESS_BITS)
        if index < len(blocks) and not blocks[index].segment.expandable:
            self._release(blocks[index])
            return True
        released = 0
        for block in reversed(blocks[:index]):
            if released >= needed or block.size < limit:
                break
            if not block.segment.expandable:
                released += block.size
                self._release(block)
        return released >= needed

    def _collect_garbage(self) -> None:
        """garbage_collect_cached_blocks: above the threshold, segments not reused for longer than the average go."""
        assert self.allowed is not None
        threshold = int(self.rules.garbage_collection_threshold * self.allowed)
        if self.reserved <= threshold:
            return
        target, reclaimed = self.reserved - threshold, 0
        pools = [pool for (_, small), pool in sorted(self._pools.items()) if not small]
        idle = [block for pool in pools for block in pool.free_blocks() if block.alone]
        total_age = sum(self._lookups - block.born for block in idle)
        while reclaimed < target and idle:
            average = total_age / len(idle)
            old = [block for block in idle if self._lookups - block.born >= average and not block.segment.expandable]
            if not old:
                return
            for block in old:
                reclaimed += block.size
                total_age -= self._lookups - block.born
                idle.remove(block)
                self._release(block)

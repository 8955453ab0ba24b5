"""Blocks, and the pools in which free blocks wait.

Free blocks are kept in one sorted list per pool and stream, each as a single integer, size before address, so
that the best fit is one bisection. c10/cuda/CUDACachingAllocator.cpp: Block, BlockPool, BlockComparatorSize.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

ADDRESS_BITS = 64
"""What a snapshot may hold; of CUDA's unified addresses 47 to 57 are used."""
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


@dataclass(slots=True, eq=False)
class Segment:
    """Memory taken from the device in one piece, or a range of addresses that pages are mapped into."""

    address: int
    size: int
    """Bytes of the piece, or of the whole range of addresses."""
    expandable: bool = False
    mapped_bytes: int = 0


class Block:
    """A stretch of a segment: handed out, waiting for a stream, free, or (expandable only) without memory."""

    __slots__ = ("address", "after", "before", "born", "free", "mapped", "pool", "requested", "segment", "size", "uses")

    def __init__(self, address: int, size: int, pool: Pool, segment: Segment) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.segment = segment
        self.before: Block | None = None
        self.after: Block | None = None
        self.free = False
        """In the pool's list of free blocks."""
        self.mapped = True
        self.requested = 0
        self.uses: set[int] | None = None
        """Other streams that use the block, while one does."""
        self.born = 0
        """The pool's count of look-ups when the block became free; its age for garbage collection."""

    @property
    def alone(self) -> bool:
        """Whether the block is its whole segment."""
        return self.before is None and self.after is None


@dataclass(slots=True, eq=False)
class Pool:
    """The small or the large pool of one stream, or of one in the private pool of a CUDA graph."""

    stream: int
    small: bool
    private: int = 0
    """Of which private pool; 0: of none."""
    keys: list[int] = field(default_factory=list)
    """Free blocks as `size << ADDRESS_BITS | address`, ascending: best fit first, then the lowest address."""
    at: dict[int, Block] = field(default_factory=dict)
    """Free blocks by address."""
    unmapped: dict[int, Block] = field(default_factory=dict)
    """Blocks without memory, by address."""

    def put(self, block: Block) -> None:
        """Adds a free block."""
        block.free = True
        self.at[block.address] = block
        insort(self.keys, block.size << ADDRESS_BITS | block.address)

    def take(self, block: Block) -> None:
        """Removes a free block."""
        block.free = False
        del self.at[block.address]
        keys = self.keys
        del keys[bisect_left(keys, block.size << ADDRESS_BITS | block.address)]

    def free_blocks(self) -> list[Block]:
        """The free blocks, best fit first."""
        return [self.at[key & ADDRESS_MASK] for key in self.keys]


def split_block(block: Block, size: int) -> Block:
    """Cuts `block` down to `size` and returns the rest, linked behind it and in no list."""
    rest = Block(block.address + size, block.size - size, block.pool, block.segment)
    rest.mapped = block.mapped
    rest.before, rest.after = block, block.after
    if rest.after is not None:
        rest.after.before = rest
    block.after = rest
    block.size = size
    return rest


def join(block: Block, neighbour: Block) -> None:
    """Makes `neighbour`, which is in no list, part of `block`."""
    if block.before is neighbour:
        block.address = neighbour.address
        block.before = neighbour.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = neighbour.after
        if block.after is not None:
            block.after.before = block
    block.size += neighbour.size

"""Blocks and pools of free ones, the device that gives segments, and the state of an allocator not begun empty."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

# Free blocks are kept in one sorted list per pool and stream, each as a single integer, size before address, so that
# the best fit is one bisection. c10/cuda/CUDACachingAllocator.cpp: Block, BlockPool, BlockComparatorSize.
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


class Device:
    """Hands out pieces of device memory until `capacity_bytes` are taken; None: without end.

    Addresses ascend, and a piece given back is used again from the lowest address on. The real driver's addresses
    are not predictable; they only decide which of two equally large free blocks is taken.
    """

    FIRST_ADDRESS = 1 << 34
    FIRST_RANGE = 1 << 46
    """Ranges for expandable segments lie above every piece."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self._end = self.FIRST_ADDRESS
        self._ranges_end = self.FIRST_RANGE
        self._holes: list[tuple[int, int]] = []

    def state(self) -> tuple[object, ...]:
        """All that decides which addresses come next, and how many."""
        return self.taken_bytes, self._end, self._ranges_end, tuple(self._holes)

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes are there."""
        return self.capacity_bytes is None or self.taken_bytes + size <= self.capacity_bytes

    def take(self, size: int) -> int | None:
        """Address of a new piece (cudaMalloc), None if the memory does not suffice."""
        if not self.fits(size):
            return None
        self.taken_bytes += size
        for index, (address, length) in enumerate(self._holes):
            if length >= size:
                del self._holes[index]
                if length > size:
                    insort(self._holes, (address + size, length - size))
                return address
        address = self._end
        self._end += size
        return address

    def give_back(self, address: int, size: int) -> None:
        """Takes a piece back (cudaFree)."""
        self.taken_bytes -= size
        insort(self._holes, (address, size))
        index = self._holes.index((address, size))
        for left in (index, index - 1):
            if 0 <= left < len(self._holes) - 1:
                (start, length), (following, more) = self._holes[left : left + 2]
                if start + length == following:
                    self._holes[left : left + 2] = [(start, length + more)]

    def reserve_range(self, size: int) -> int:
        """Address of a range without memory (cuMemAddressReserve)."""
        address = self._ranges_end
        self._ranges_end += size
        return address

    def map(self, address: int, size: int) -> bool:  # noqa: ARG002
        """Puts memory under a range (cuMemCreate, cuMemMap), all of it or nothing."""
        if not self.fits(size):
            return False
        self.taken_bytes += size
        return True

    def unmap(self, address: int, size: int) -> None:  # noqa: ARG002
        """Takes the memory from under a range (cuMemUnmap, cuMemRelease)."""
        self.taken_bytes -= size


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """A piece of a segment when the trace began: a block, free memory (no name), or addresses without memory."""

    size: int
    block: int | None = None
    requested_bytes: int = 0
    waiting: bool = False
    mapped: bool = True


@dataclass(frozen=True, slots=True)
class StartSegment:
    """A segment when the trace began."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    stretches: tuple[SegmentPiece, ...]

"""The device as the allocator sees it: a number of bytes, handed out under addresses."""

from __future__ import annotations

from bisect import insort


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

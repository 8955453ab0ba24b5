"""Asks the operating system whether memory of this process was ever written to: pages that nobody wrote are no memory,
and read as zeros."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from pathlib import Path

LARGE_BYTES = 8 << 20
"""From this size on what is taken is new from the operating system, once `take_large_anew` was called."""
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD (glibc, malloc.h): by default it grows to 32 MiB with what is given back."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def take_large_anew() -> None:
    """From here on memory of `LARGE_BYTES` or more is new whenever it is taken. Where the C library knows no such
    setting nothing is changed."""
    if hasattr(_libc(), "mallopt"):
        _libc().mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def is_unwritten(address: int, size: int) -> bool:
    """Whether these bytes are zeros because nobody has written there; False for small ones, and for those of a file."""
    if size < LARGE_BYTES or not hasattr(_libc(), "mincore"):
        return False
    page = mmap.PAGESIZE
    first, after = -(-address // page) * page, (address + size) // page * page
    pages = ctypes.create_string_buffer((after - first) // page)
    if _libc().mincore(ctypes.c_void_p(first), ctypes.c_size_t(after - first), pages) != 0 or any(pages.raw):
        return False
    edges = ctypes.string_at(address, first - address) + ctypes.string_at(after, address + size - after)
    return not any(edges) and _is_anonymous(first)


def _is_anonymous(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        first, after = (int(each, 16) for each in span.split("-"))
        if first <= address < after:
            return inode == "0"
    return False

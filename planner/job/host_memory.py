"""Reads how much of a node's main memory a job may use, where no spec says it: an option, a request's key."""

from __future__ import annotations

from planner.errors import SpecError
from planner.job.size_limits import MOST_HOST_BYTES
from planner.units import parse_bytes


def read_host_memory(written: str | int, place: str) -> int:
    """Bytes; 0 for nothing said. Raises SpecError for what is no such size."""
    try:
        found = parse_bytes(written) if written != "" else 0
    except ValueError:
        found = -1
    if not 0 <= found <= MOST_HOST_BYTES:
        raise SpecError(f"{str(written)[:40]!a}", allowed="a size from 0 to 1024TiB, such as 480GiB", place=place)
    return found

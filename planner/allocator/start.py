"""The state of an allocator that did not begin empty."""

from __future__ import annotations

from dataclasses import dataclass


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

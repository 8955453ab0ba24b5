"""Writes and reads a child's answer: named parts of bytes over a pipe that the reader bounds.

A part is the length of its name (1 byte), the length of its content (8 bytes, big endian), the name, the content. What
is inside a part is for its reader to check; bytes that are no parts are found here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_NAME_BYTES = 1
_CONTENT_BYTES = 8
_HEAD_BYTES = _NAME_BYTES + _CONTENT_BYTES


class BrokenAnswerError(Exception):
    """The bytes are no answer: cut off, or written by something else than :class:`AnswerWriter`."""


class AnswerWriter:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, name: str, content: bytes) -> None:
        """Send one part, whole. Names are ASCII and at most 255 characters."""
        encoded = name.encode("ascii")
        head = len(encoded).to_bytes(_NAME_BYTES, "big") + len(content).to_bytes(_CONTENT_BYTES, "big")
        for piece in (head + encoded, content):
            view = memoryview(piece)
            while view:
                view = view[os.write(self._descriptor, view) :]


def parts_of(answer: bytes) -> Iterator[tuple[str, bytes]]:
    """The parts of an answer, in order. Raises BrokenAnswerError at the first byte that belongs to none."""
    at = 0
    while at < len(answer):
        name_bytes = answer[at]
        content_bytes = int.from_bytes(answer[at + _NAME_BYTES : at + _HEAD_BYTES], "big")
        end = at + _HEAD_BYTES + name_bytes + content_bytes
        name = answer[at + _HEAD_BYTES : at + _HEAD_BYTES + name_bytes]
        if at + _HEAD_BYTES > len(answer) or end > len(answer) or not name.isascii():
            raise BrokenAnswerError(f"byte {at} of {len(answer)} begins no part")
        yield name.decode("ascii"), answer[at + _HEAD_BYTES + name_bytes : end]
        at = end

"""Reads pickled plain data, however hostile: no names are looked up, and no more memory is taken than the bytes are
worth.

The opcodes are those of Python 3.11 (pickletools.opcodes).
"""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
import re
from typing import Any

from planner.errors import SnapshotError

_NAMES = {each.name: each.code.encode("latin-1") for each in pickletools.opcodes}
_MEMO = {_NAMES["PUT"], _NAMES["LONG_BINPUT"]}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def plain_data(raw: bytes, place: str, allowed: str) -> Any:
    """The data of a pickle. Raises SnapshotError, which says what would have been `allowed`."""
    _check_memo(raw, place, allowed)
    try:
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except EOFError:
        raise SnapshotError("the pickle is truncated", allowed=allowed, place=place) from None
    except pickle.UnpicklingError as fault:
        if str(fault).startswith("it asks for "):
            raise SnapshotError(
                f"not plain data: {fault}; nothing was executed", allowed=allowed, place=place
            ) from None
        problem = "the pickle is truncated" if "truncated" in str(fault) else f"not a pickle ({fault})"
        raise SnapshotError(problem, allowed=allowed, place=place) from None
    except Exception as fault:  # a damaged pickle fails in any way it likes
        raise SnapshotError(f"not a pickle ({type(fault).__name__})", allowed=allowed, place=place) from None


def _check_memo(raw: bytes, place: str, allowed: str) -> None:
    """Refuses a pickle that remembers something under a number far above the count of what it has: the unpickler makes
    a table of twice that number (Modules/_pickle.c, _Unpickler_MemoPut), and ten bytes would take 64 GiB.

    Goes from opcode to opcode; where there is none, the unpickler will say so.
    """
    position, end = 0, len(raw)
    runs = _runs(min(end >> 16, 255))
    while position < end:
        match = runs.match(raw, position)
        assert match is not None  # an empty run is one
        position = match.end()
        opcode = raw[position : position + 1]
        if opcode in _MEMO:
            index, position = _memo_index(raw, position)
            if index > end:
                raise SnapshotError(f"not a pickle (it has no {index} values)", allowed=allowed, place=place)
        elif opcode in _COUNTED:
            width = _COUNTED[opcode]
            position += 1 + width + int.from_bytes(raw[position + 1 : position + 1 + width], "little")
        else:
            return


def _memo_index(raw: bytes, position: int) -> tuple[int, int]:
    """The number under which an opcode remembers, and where the next one stands."""
    if raw[position : position + 1] == _NAMES["LONG_BINPUT"]:
        return int.from_bytes(raw[position + 1 : position + 5], "little"), position + 5
    after = raw.find(b"\n", position)
    digits = raw[position + 1 : after].strip() if after > 0 else b""
    # What is no number the unpickler refuses; one of 20 digits is larger than any index.
    return (int(digits[:20]) if digits[:20].isdigit() else 0), (after + 1 if after > 0 else len(raw))


@functools.cache
def _runs(third_byte: int) -> re.Pattern[bytes]:
    """Opcodes in a row whose length does not depend on a number in them, without STOP; of those that remember, only
    such as do it under a small number, or one whose third byte is at most this and whose fourth is 0."""
    by_length: dict[int, bytes] = {}
    lines = b""
    for each in pickletools.opcodes:
        code = each.code.encode("latin-1")
        length = 0 if each.arg is None else each.arg.n
        if code in _MEMO or code == _NAMES["STOP"]:
            continue
        if length >= 0:
            by_length[length] = by_length.get(length, b"") + code
        elif length == pickletools.UP_TO_NEWLINE:
            lines += code
    fixed = [b"[%s].{%d}" % (re.escape(codes), length) for length, codes in sorted(by_length.items())]
    memo = [rb"r..[\x00-%s]\x00" % re.escape(bytes([third_byte])), rb"p[0-9]{1,5}\n"]
    return re.compile(b"(?:%s|[%s][^\\n]*\\n)*+" % (b"|".join([*fixed, *memo]), re.escape(lines)), re.DOTALL)


def _find_length_widths() -> dict[bytes, int]:
    """Opcodes that say how many bytes follow, each with the width of that number."""
    widths = {
        pickletools.TAKEN_FROM_ARGUMENT1: 1,
        pickletools.TAKEN_FROM_ARGUMENT4: 4,
        pickletools.TAKEN_FROM_ARGUMENT4U: 4,
        pickletools.TAKEN_FROM_ARGUMENT8U: 8,
    }
    return {
        each.code.encode("latin-1"): widths[each.arg.n]
        for each in pickletools.opcodes
        if each.arg is not None and each.arg.n in widths
    }


_COUNTED = _find_length_widths()

"""Proves that the events of a rank are those its paper GPU was told, and that planner's functions are unchanged."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import secrets
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from types import CodeType, FunctionType
from typing import Any

from planner.events import Alloc, EmptyCache, Event, Free, Synchronize, Use, write_out_repeats
from planner.tracing.program.rank_orders import forged_error
from planner.tracing.rank_trace import Trace

TAIL, SEAL = "tail", "seal"
"""Parts of the answer: events after those of the trace, and what attests both."""
# The native recorder keeps a digest of every allocation and release as it happens, in memory that no object of Python
# leads to, and signs it once under a key that it was given before the program's first line (native/witness.cpp).
# Whoever has started the process works the same digest out of the trace that came back. A program that changes
# planner's modules, its records or its answer is found out by that; one that searches the native memory of its process
# for the key is not.
_KEY_BYTES = 32
_ROW = struct.Struct("<5q")
_SEAL = struct.Struct("<32sqq32s")
_ALLOC, _FREE, _USE, _SYNCHRONIZE, _EMPTY_CACHE = range(5)
"""As native/trace.h has them."""


def new_key() -> bytearray:
    """For one process."""
    return bytearray(secrets.token_bytes(_KEY_BYTES))


def begin(key: bytearray) -> None:
    """In the process, before the program: from here on events are attested. The key is wiped out."""
    from planner.paper import library

    if not library.load().paper_attest(bytes(key), len(key)):
        raise RuntimeError("the paper GPU attests nothing: it has been at work before")
    key[:] = bytes(len(key))


def seal_of(report: bytes) -> bytes:
    """In the process, at its end: what attests its events and this report; empty if the recording was interrupted."""
    from planner.paper import library

    seal = ctypes.create_string_buffer(_SEAL.size)
    written: int = library.load().paper_seal(report, len(report), seal)
    return seal.raw[:written]


@dataclass(frozen=True, slots=True)
class Attested:
    """What the recorder says of its process."""

    digest: bytes
    rows: int
    highest_bytes: int
    """The most that was held at one time, as it was asked for, whether it was written down or not."""


def open_seal(seal: bytes, key: bytearray, report: bytes) -> Attested:
    """Raises ProgramError for a seal that is not this key's, or that of another report."""
    if len(seal) != _SEAL.size:
        raise forged_error("its recording was interrupted")
    digest, rows, highest, code = _SEAL.unpack(seal)
    signed = seal[: _SEAL.size - len(code)] + report
    if not hmac.compare_digest(code, hmac.digest(bytes(key), signed, "sha256")):
        raise forged_error("the report is not that of its recorder")
    return Attested(digest, rows, highest)


def check_events(trace: Trace, tail: Sequence[Event], attested: Attested) -> None:
    """Raises ProgramError where the trace and what came after it are not what was attested."""
    digest, count = hashlib.sha256(), 0
    for row in islice(_rows(chain(write_out_repeats(trace.events, trace.repeats), tail)), attested.rows + 1):
        count += 1
        digest.update(row)
    if count != attested.rows or digest.digest() != attested.digest:
        raise forged_error("its events are not those that its recorder was told")


def _rows(events: Iterable[Event]) -> Iterator[bytes]:
    """What an allocator would be told, with blocks numbered by their births. Of what is given up one directly after the
    other the order is that of the threads of a process."""
    births: dict[int, int] = {}
    freed: list[int] = []
    last = b""
    for event in chain(events, (None,)):
        kind = type(event)
        if kind is Free:
            freed.append(births.get(event.block, -1))  # type: ignore[union-attr]
            continue
        if kind is Alloc:
            number = births[event.block] = len(births)  # type: ignore[union-attr]
            row = _ROW.pack(_ALLOC, number, event.requested_bytes, event.stream, event.pool)  # type: ignore[union-attr]
        elif kind is Use:
            row = _ROW.pack(_USE, births.get(event.block, -1), 0, event.stream, 0)  # type: ignore[union-attr]
        elif kind is Synchronize or kind is EmptyCache:
            row = _ROW.pack(_SYNCHRONIZE if kind is Synchronize else _EMPTY_CACHE, 0, 0, 0, 0)
        elif event is not None:
            continue
        if freed:
            yield from (_ROW.pack(_FREE, number, 0, 0, 0) for number in sorted(freed))
            freed.clear()
            last = b""
        if event is not None and (kind is not Use or row != last):
            yield row
            last = row


class OwnCode:
    """Every function of planner's modules as it is now; to be made before a program's first line."""

    def __init__(self) -> None:
        self._modules = [name for name in sys.modules if name.partition(".")[0] == "planner"]
        self._known = dict(self._functions())

    def changed(self) -> str:
        """The name of a function that is another one by now, or gone; empty if there is none."""
        now = dict(self._functions())
        return next((name for name, code in self._known.items() if now.get(name) != code), "")

    def _functions(self) -> Iterator[tuple[str, tuple[int, CodeType]]]:
        for name in self._modules:
            for key, value in list(vars(sys.modules.get(name, sys)).items()):
                path = f"{name}.{key}"
                if isinstance(value, type) and value.__module__ == name:
                    for inner, member in list(vars(value).items()):
                        yield from _code_of(f"{path}.{inner}", member)
                else:
                    yield from _code_of(path, value)


def _code_of(path: str, value: Any) -> Iterator[tuple[str, tuple[int, CodeType]]]:
    """Those that are defined under their names: a variable may have another function any time."""
    parts = (value, *(getattr(value, name, None) for name in ("__func__", "fget", "__wrapped__")))
    for number, part in enumerate(parts):
        if isinstance(part, FunctionType) and path.endswith(f".{part.__name__}"):
            yield f"{path}#{number}", (id(part), part.__code__)

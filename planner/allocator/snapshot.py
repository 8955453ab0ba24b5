"""Reads what `torch.cuda.memory._dump_snapshot` writes, as plain data and nothing else.

A pickle can run anything; this reader knows no names, so a snapshot that asks for one is refused before a single
call is made.
"""

from __future__ import annotations

import functools
import gzip
import io
import lzma
import pickle
import pickletools
import re
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SnapshotError
from planner.units import MIB

# The opcodes are those of Python 3.11 (pickletools.opcodes).
_NAMES = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
_MEMO = {_NAMES["PUT"], _NAMES["LONG_BINPUT"]}
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_COUNTED = {
    opcode.code.encode("latin-1"): _WIDTHS[opcode.arg.n]
    for opcode in pickletools.opcodes
    if opcode.arg is not None and opcode.arg.n in _WIDTHS
}
"""Opcodes that say how many bytes follow, each with the width of that number."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickle(raw: bytes, place: str) -> Any:
    """The data of a pickle, if it is plain."""
    _check_memo(raw, place)
    try:
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except EOFError:
        problem = "the pickle is truncated"
    except pickle.UnpicklingError as fault:
        problem = "the pickle is truncated" if "truncated" in str(fault) else f"not a pickle ({fault})"
        if str(fault).startswith("it asks for "):
            problem = f"not plain data: {fault}; nothing was executed"
    except Exception as fault:  # a damaged pickle fails in any way it likes
        problem = f"not a pickle ({type(fault).__name__})"
    raise SnapshotError(problem, allowed=_ALLOWED, place=place)


def _check_memo(raw: bytes, place: str) -> None:
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
        if opcode in _COUNTED:
            width = _COUNTED[opcode]
            position += 1 + width + int.from_bytes(raw[position + 1 : position + 1 + width], "little")
            continue
        if opcode == _NAMES["LONG_BINPUT"]:
            index, position = int.from_bytes(raw[position + 1 : position + 5], "little"), position + 5
        elif opcode == _NAMES["PUT"]:
            after = raw.find(b"\n", position)
            digits = raw[position + 1 : after].strip()[:20] if after > 0 else b""
            # What is not a number the unpickler refuses; one of 20 digits is larger than any index.
            index, position = int(digits) if digits.isdigit() else 0, after + 1 if after > 0 else end
        else:
            return
        if index > end:
            raise SnapshotError(f"not a pickle (it has no {index} values)", allowed=_ALLOWED, place=place)


@functools.cache
def _runs(third_byte: int) -> re.Pattern[bytes]:
    """Opcodes in a row whose length does not depend on a number in them, without STOP; of those that remember, only
    such as do it under a small number, or one whose third byte is at most this and whose fourth is 0."""
    by_length: dict[int, bytes] = {}
    lines = b""
    for opcode in pickletools.opcodes:
        code = opcode.code.encode("latin-1")
        length = 0 if opcode.arg is None else opcode.arg.n
        if code in _MEMO or code == _NAMES["STOP"]:
            continue
        if length >= 0:
            by_length[length] = by_length.get(length, b"") + code
        elif length == pickletools.UP_TO_NEWLINE:
            lines += code
    fixed = [b"[%s].{%d}" % (re.escape(codes), length) for length, codes in sorted(by_length.items())]
    memo = [rb"r..[\x00-%s]\x00" % re.escape(bytes([third_byte])), rb"p[0-9]{1,5}\n"]
    return re.compile(b"(?:%s|[%s][^\\n]*\\n)*+" % (b"|".join([*fixed, *memo]), re.escape(lines)), re.DOTALL)


_ALLOWED = "a pickle written by torch.cuda.memory._dump_snapshot, also compressed as .gz or .xz"
_LARGEST_BYTES = 4 << 30
"""Of the uncompressed pickle."""
_ALWAYS_UNPACKED_BYTES, _MOST_UNPACKED = 64 * MIB, 500
"""A small compressed file must not fill the memory: beyond the first figure it unpacks to at most so many times its
size. Recorded snapshots unpack to 5 to 70 times theirs."""
_MOST_BYTES = 2**48
"""256 TiB, the address space of a process: no block is as large."""
_HIGHEST_ADDRESS = 2**63
"""Half of what 64 bits hold: a block that begins below it ends within 64 bits."""
_MOST_DEVICES, _MOST_STREAMS = 1024, 4096
"""Of one process, far above what there is. What a replay does for each stream it does again and again."""


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """A block of a segment when the snapshot was taken."""

    address: int
    size: int
    requested_bytes: int
    state: str

    @property
    def free(self) -> bool:
        return self.state == "inactive"

    @property
    def waiting(self) -> bool:
        """Given up by the program, still in use on another stream."""
        return self.state in ("active_pending_free", "active_awaiting_free")


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """A segment when the snapshot was taken; of an expandable one, a mapped stretch."""

    device: int
    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[SnapshotBlock, ...]
    private: bool = False
    """In the pool of a CUDA graph or of torch.cuda.MemPool."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One recorded action: alloc, free_requested, free_completed, segment_alloc, segment_free, ..."""

    action: str
    address: int
    size: int
    stream: int
    free_bytes: int | None = None
    """Of an `oom`: what the device had left."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: for each device its trace, oldest first, and the segments at the end."""

    traces: tuple[tuple[TraceEntry, ...], ...]
    segments: tuple[SnapshotSegment, ...]
    conf: str
    """PYTORCH_ALLOC_CONF of the process that was recorded; empty also where the snapshot does not say."""


def read_snapshot(path: Path) -> Snapshot:
    """Reads a snapshot. Raises SnapshotError if it cannot be read, is not plain data, or holds no trace."""
    return snapshot_of_bytes(read_packed(path), str(path))[0]


def snapshot_of_bytes(packed: bytes, place: str, *, traced: bool = True) -> tuple[Snapshot, Mapping[str, Any]]:
    """The snapshot in the bytes of a file, compressed or not, and the plain data that it was read from.

    Raises SnapshotError as :func:`read_snapshot` does; without `traced`, one that has segments needs no trace.
    """
    raw = unpack(packed, place)
    content = _unpickle(raw, place)
    if isinstance(content, list):  # what torch.cuda.memory_snapshot() returns: the segments alone
        content = {"segments": content, "device_traces": []}
    try:
        snapshot = _snapshot(content, len(raw))
    except (KeyError, TypeError, ValueError) as fault:
        what = f"there is no {fault}" if isinstance(fault, KeyError) else fault
        problem = f"not a snapshot of CUDA memory: {what}"
        raise SnapshotError(problem, allowed=_ALLOWED, place=place) from None
    if not any(snapshot.traces) and (traced or not snapshot.segments):
        raise SnapshotError(
            "the snapshot holds no trace" + ("" if snapshot.segments else ", and no segment"),
            remedy="call torch.cuda.memory._record_memory_history() before the step that is to be recorded"
            + ("; planner explain tells what was held" if snapshot.segments else ""),
            place=place,
        )
    return snapshot, content


def read_packed(path: Path) -> bytes:
    """The bytes of a snapshot's file, compressed or not. Raises SnapshotError where it cannot be read."""
    place = str(path)
    try:
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            problem = "it is a device or a pipe, which may never end"
            raise SnapshotError(problem, allowed="a file", remedy="save it to a file", place=place)
        with path.open("rb") as opened:
            packed = opened.read(min(status.st_size, _LARGEST_BYTES) + 1)
    except OSError as fault:
        raise SnapshotError(f"cannot be read: {fault.strerror or fault}", place=place) from None
    except ValueError as fault:  # a NUL in the path
        raise SnapshotError(f"cannot be read: {fault}", place=place) from None
    if len(packed) > _LARGEST_BYTES:
        raise SnapshotError(f"it is larger than {_LARGEST_BYTES >> 30} GiB", allowed=_ALLOWED, place=place)
    return packed


def unpack(packed: bytes, place: str) -> bytes:
    """The content of a file, compressed (gzip, xz) or not. Raises SnapshotError if it is damaged or too large."""
    if not packed:
        raise SnapshotError("the file is empty", allowed=_ALLOWED, place=place)
    most = min(_LARGEST_BYTES, max(_ALWAYS_UNPACKED_BYTES, _MOST_UNPACKED * len(packed)))
    opened = io.BytesIO(packed)
    try:
        if packed.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=opened) as file:
                content = file.read(most + 1)
        elif packed.startswith(b"\xfd7zXZ\x00"):
            with lzma.LZMAFile(opened) as xz_file:
                content = xz_file.read(most + 1)
        else:
            return packed
    except (EOFError, OSError, lzma.LZMAError, zlib.error):
        raise SnapshotError("the compressed file is truncated or damaged", allowed=_ALLOWED, place=place) from None
    if len(content) > most:
        raise SnapshotError(
            f"its {len(packed)} bytes unpack to more than {most >> 20} MiB",
            allowed=f"at most {_MOST_UNPACKED} times as much, and {_LARGEST_BYTES >> 30} GiB",
            remedy="give the uncompressed file",
            place=place,
        )
    return content


def _snapshot(content: Any, raw_bytes: int) -> Snapshot:
    content = _mapping(content, "what it holds")
    settings = _mapping(content.get("allocator_settings") or {}, "allocator_settings")
    traces = [_list(trace, "a trace") for trace in _list(content["device_traces"], "device_traces")]
    segments = [_mapping(segment, "a segment") for segment in _list(content["segments"], "segments")]
    listed = sum(map(len, traces)) + sum(len(_list(segment["blocks"], "blocks")) for segment in segments)
    # A pickle can name one list again and again: a small file would stand for more than any machine holds.
    if listed > raw_bytes or len(traces) > _MOST_DEVICES:
        raise ValueError(f"{listed} entries and blocks of {len(traces)} devices in {raw_bytes} bytes")
    snapshot = Snapshot(
        traces=tuple(tuple(map(_entry, trace)) for trace in traces),
        segments=tuple(map(_segment, segments)),
        conf=_text(settings, "PYTORCH_ALLOC_CONF") or _text(settings, "PYTORCH_CUDA_ALLOC_CONF"),
    )
    streams = {segment.stream for segment in snapshot.segments}
    streams.update(entry.stream for trace in snapshot.traces for entry in trace)
    if len(streams) > _MOST_STREAMS:
        raise ValueError(f"{len(streams)} streams, and no process has more than {_MOST_STREAMS}")
    return snapshot


def _entry(entry: Any) -> TraceEntry:
    action = _mapping(entry, "an entry")["action"]
    if not isinstance(action, str):
        raise ValueError("action is not a string")
    # An out-of-memory entry has no address; it says how much the device had left, and may ask for anything.
    size = _whole(entry, "size", 2**64 if action == "oom" else _MOST_BYTES)
    address = _whole(entry, "addr", _HIGHEST_ADDRESS) if "addr" in entry else 0
    free = _whole(entry, "device_free", 2**64) if action == "oom" and "device_free" in entry else None
    return TraceEntry(action, address, size, _whole(entry, "stream", 2**64, -(2**64)), free)


def _segment(segment: Mapping[str, Any]) -> SnapshotSegment:
    address = end = _whole(segment, "address", _HIGHEST_ADDRESS)
    blocks = []
    for block in segment["blocks"]:  # addresses of blocks are written since torch 2.1 only
        size = _whole(_mapping(block, "a block"), "size", _MOST_BYTES)
        requested = _whole(block, "requested_size", _MOST_BYTES) if "requested_size" in block else size
        state = block["state"]
        if not isinstance(state, str):
            raise ValueError("state is not a string")
        blocks.append(SnapshotBlock(end, size, requested, state))
        end += size
    if end > 2 * _HIGHEST_ADDRESS:
        raise ValueError("the blocks of a segment end beyond 64 bits")
    return SnapshotSegment(
        device=_whole(segment, "device", _MOST_DEVICES),
        address=address,
        size=_whole(segment, "total_size", _MOST_BYTES),
        stream=_whole(segment, "stream", 2**64, -(2**64)),
        small=segment["segment_type"] == "small",
        expandable=segment.get("is_expandable", False) is True,
        blocks=tuple(blocks),
        private=tuple(_list(segment.get("segment_pool_id", (0, 0)), "segment_pool_id")) != (0, 0),
    )


def _whole(entry: Mapping[str, Any], key: str, most: int, least: int = 0) -> int:
    value = entry[key]
    if type(value) is not int:
        raise ValueError(f"{key} is of type {type(value).__name__}, no whole number")
    if not least <= value <= most:
        raise ValueError(f"{key} is {value if abs(value) < 2**128 else 'huge'}, not between {least} and {most}")
    return value


def _text(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")
    return value


def _list(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is not a list")
    return value


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value

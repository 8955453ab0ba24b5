"""Reads what `torch.cuda.memory._dump_snapshot` writes, as plain data and nothing else.

A pickle can run anything; this reader knows no names, so a snapshot that asks for one is refused before a single
call is made.
"""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SnapshotError

_ALLOWED = "a pickle written by torch.cuda.memory._dump_snapshot, also compressed as .gz or .xz"
_LARGEST_BYTES = 4 << 30
"""Of the uncompressed pickle: a small compressed file must not fill the memory."""
_FREE_STATES = frozenset({"inactive"})
_WAITING_STATES = frozenset({"active_pending_free", "active_awaiting_free"})


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """A block of a segment when the snapshot was taken."""

    address: int
    size: int
    requested_bytes: int
    state: str

    @property
    def free(self) -> bool:
        return self.state in _FREE_STATES

    @property
    def waiting(self) -> bool:
        """Given up by the program, still in use on another stream."""
        return self.state in _WAITING_STATES


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: for each device its trace, oldest first, and the segments at the end."""

    traces: tuple[tuple[TraceEntry, ...], ...]
    segments: tuple[SnapshotSegment, ...]
    conf: str
    """PYTORCH_ALLOC_CONF of the process that was recorded; empty also where the snapshot does not say."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_snapshot(path: Path) -> Snapshot:
    """Reads a snapshot. Raises SnapshotError if it cannot be read, is not plain data, or holds no trace."""
    place = str(path)
    content = _plain_data(_read(path, place), place)
    try:
        snapshot = _snapshot(content)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise SnapshotError(
            f"not a snapshot of CUDA memory ({type(fault).__name__}: {fault})", allowed=_ALLOWED, place=place
        ) from None
    if not any(snapshot.traces):
        raise SnapshotError(
            "the snapshot holds no trace",
            remedy="call torch.cuda.memory._record_memory_history() before the step that is to be recorded",
            place=place,
        )
    return snapshot


def _read(path: Path, place: str) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as fault:
        raise SnapshotError(f"cannot be read: {fault.strerror or fault}", place=place) from None
    if not raw:
        raise SnapshotError("the file is empty", allowed=_ALLOWED, place=place)
    try:
        with io.BytesIO(raw) as file:
            if raw.startswith(b"\x1f\x8b"):
                return _bounded(gzip.GzipFile(fileobj=file), place)
            if raw.startswith(b"\xfd7zXZ\x00"):
                return _bounded(lzma.LZMAFile(file), place)
    except (EOFError, OSError, lzma.LZMAError, zlib.error):
        raise SnapshotError("the compressed file is truncated or damaged", allowed=_ALLOWED, place=place) from None
    return raw


def _bounded(file: gzip.GzipFile | lzma.LZMAFile, place: str) -> bytes:
    content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise SnapshotError(f"it unpacks to more than {_LARGEST_BYTES >> 30} GiB", allowed=_ALLOWED, place=place)
    return content


def _plain_data(raw: bytes, place: str) -> Any:
    try:
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except EOFError:
        raise SnapshotError("the pickle is truncated", allowed=_ALLOWED, place=place) from None
    except pickle.UnpicklingError as fault:
        if str(fault).startswith("it asks for "):
            raise SnapshotError(
                f"not plain data: {fault}; nothing was executed", allowed=_ALLOWED, place=place
            ) from None
        problem = "the pickle is truncated" if "truncated" in str(fault) else f"not a pickle ({fault})"
        raise SnapshotError(problem, allowed=_ALLOWED, place=place) from None
    except Exception as fault:  # a damaged pickle fails in any way it likes
        raise SnapshotError(f"not a pickle ({type(fault).__name__})", allowed=_ALLOWED, place=place) from None


def _snapshot(content: Mapping[str, Any]) -> Snapshot:
    settings = content.get("allocator_settings") or {}
    return Snapshot(
        traces=tuple(tuple(map(_entry, trace)) for trace in content["device_traces"]),
        segments=tuple(map(_segment, content["segments"])),
        conf=str(settings.get("PYTORCH_ALLOC_CONF") or settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""),
    )


def _entry(entry: Mapping[str, Any]) -> TraceEntry:
    # An out-of-memory entry has no address; it says how much the device had left.
    return TraceEntry(str(entry["action"]), int(entry.get("addr", 0)), int(entry["size"]), int(entry["stream"]))


def _segment(segment: Mapping[str, Any]) -> SnapshotSegment:
    return SnapshotSegment(
        device=int(segment["device"]),
        address=int(segment["address"]),
        size=int(segment["total_size"]),
        stream=int(segment["stream"]),
        small=segment["segment_type"] == "small",
        expandable=bool(segment.get("is_expandable", False)),
        blocks=tuple(_blocks(int(segment["address"]), segment["blocks"])),
        private=tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0),
    )


def _blocks(address: int, blocks: Sequence[Mapping[str, Any]]) -> list[SnapshotBlock]:
    found = []
    for block in blocks:  # addresses of blocks are written since torch 2.1 only
        size = int(block["size"])
        found.append(SnapshotBlock(address, size, int(block.get("requested_size", size)), str(block["state"])))
        address += size
    return found

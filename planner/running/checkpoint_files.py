"""Checkpoint files of other formats than torch's own: holes for what nobody has written, and mapped when they are read.

A file has its structure, its size and every value of the host; what lies on the device, and what the host has never
written, is a hole, which takes no room on a disk and reads as zeros.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from planner import upstream
from planner.running.memory_pages import LARGE_BYTES, is_unwritten

_ALIGNMENT = 8
"""Of the data in a safetensors file (its format: 8 bytes with the length of a header in JSON, the header, the data)."""


@contextmanager
def with_holes(
    saves: Callable[[], None], as_if_read: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """Inside, safetensors files have holes, and torch's own are mapped when they are loaded. `saves` is told of each
    safetensors file; `as_if_read` stands around each loading that the program did not ask to be mapped."""

    def write(_real: Any) -> Any:
        def serialize_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            saves()
            _write_safetensors(tensors, filename, metadata)

        return serialize_file

    wrapped: dict[str, upstream.Wrapper] = {
        "safetensors.torch:serialize_file": write,
        "torch:load": functools.partial(_mapping, as_if_read),
    }
    with upstream.patch_targets("program checkpoints", wrapped=wrapped):
        yield


def _write_safetensors(tensors: Mapping[str, Any], filename: Any, metadata: Any) -> None:
    """As safetensors 0.8: larger elements first, then by name."""
    names = sorted(tensors, key=lambda name: (-_element_bytes(tensors[name]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in names:
        each = tensors[name]
        header[name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [at, at + each.data_len]}
        at += each.data_len
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _write_data(file, tensors[name].data_ptr, tensors[name].data_len)
        file.truncate()


def _element_bytes(tensor: Any) -> int:
    count = 1
    for each in tensor.shape:
        count *= each
    return tensor.data_len // count if count else 0


def _write_data(file: Any, address: int, size: int) -> None:
    if is_unwritten(address, size):
        file.seek(size, os.SEEK_CUR)
    elif size:
        file.write((ctypes.c_char * size).from_address(address))


def _mapping(as_if_read: Callable[[], AbstractContextManager[None]], real: Callable[..., Any]) -> Callable[..., Any]:
    """Loading that reads of a large file what is asked for."""

    def load(file: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("mmap") is None and _can_be_mapped(file):
            with as_if_read():
                return real(file, *arguments, **{**options, "mmap": True})
        return real(file, *arguments, **options)

    return load


def _can_be_mapped(file: Any) -> bool:
    if not isinstance(file, str | os.PathLike):
        return False
    path = os.fspath(file)
    return os.path.isfile(path) and os.path.getsize(path) >= LARGE_BYTES and zipfile.is_zipfile(path)

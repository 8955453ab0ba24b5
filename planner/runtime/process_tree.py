"""Measures and kills a process with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024
_BLOCK_BYTES = 512
"""The unit of st_blocks (stat(2))."""
_MEMORY_FILES = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
_MOST_KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree takes now."""

    memory_bytes: int
    tasks: int


def members(root: int) -> list[int]:
    """The process and its descendants, parents first; empty once it is gone."""
    found = [root] if Path(f"/proc/{root}").exists() else []
    for each in found:
        found += _children(each)
    return found


def usage(root: int) -> Usage:
    """Memory and tasks of the whole tree. Pages shared by several of its processes count for each of them."""
    memory = tasks = 0
    memory_files: dict[tuple[int, int], int] = {}
    shared = 0
    for process in members(root):
        status = _status(process)
        memory += status.get("RssAnon", 0) + status.get("RssFile", 0)
        shared += status.get("RssShmem", 0)
        tasks += status.get("Threads", 0)
        memory_files.update(_open_memory_files(process))
    # A memory file that is mapped is seen twice: as shared pages and as an open file.
    return Usage(memory * _KIB + max(shared * _KIB, sum(memory_files.values())), tasks)


def kill(root: int) -> None:
    """End the process, its group and its descendants. They are stopped first, so that none starts another meanwhile."""
    known: set[int] = set()
    for _ in range(_MOST_KILL_ROUNDS):
        fresh = [each for each in members(root) if each not in known]
        if not fresh:
            break
        for each in fresh:
            _signal(each, signal.SIGSTOP)
        known.update(fresh)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    for each in known:
        _signal(each, signal.SIGKILL)


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _children(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            yield from map(int, (thread / "children").read_text().split())


def _status(process: int) -> dict[str, int]:
    """The numeric fields of /proc/PID/status; sizes are in KiB."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            number = value.split()
            if number and number[0].isdigit():
                found[name] = int(number[0])
    return found


def _open_memory_files(process: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Open files whose pages are memory that no mapping shows: device and inode, and their bytes."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith(_MEMORY_FILES):
                    stat = os.stat(entry.path)
                    yield (stat.st_dev, stat.st_ino), stat.st_blocks * _BLOCK_BYTES

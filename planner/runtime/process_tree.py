"""Measures and kills a process with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024
_BLOCK_BYTES = 512
"""The unit of st_blocks (stat(2))."""
_MEMORY_FILES = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
_SOCKET_BUFFER_BYTES = 212_992
"""net.core.wmem_default and rmem_default (net/core/sock.c); the walls refuse to enlarge them."""
_PIPE_BYTES = 65_536
"""pipe(7); the walls refuse to enlarge it."""
_INODES = {"unix": 6, "udp": 9, "udp6": 9}
"""Columns of the files in /proc/net."""
_MOST_KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree takes now."""

    tasks: int = 0
    pages_bytes: int = 0
    """Pages of its processes, of which forks may share some."""
    other_bytes: int = 0
    """Shared memory, page tables, and buffers of the kernel."""

    @property
    def memory_bytes(self) -> int:
        """All of it."""
        return self.pages_bytes + self.other_bytes


def members(root: int) -> list[int]:
    """The process and its descendants, parents first; empty once it is gone."""
    processes = [root] if Path(f"/proc/{root}").exists() else []
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                processes += map(int, (thread / "children").read_text().split())
    return processes


def usage(root: int, *, proportional: bool = False) -> Usage:
    """Memory and tasks of the whole tree. Pages shared by several of its processes (forks) count for each of them, if
    not `proportional`, which takes longer: the kernel looks at each page."""
    pages = tasks = shared = tables = 0
    memory_files: dict[tuple[int, int], int] = {}
    buffers: dict[str, int] = {}
    processes = members(root)
    for process in processes:
        status = _status(process)
        shares = _status(process, "smaps_rollup") if proportional else {}
        pages += sum(shares.get(f"Pss_{kind}", status.get(f"Rss{kind}", 0)) for kind in ("Anon", "File"))
        shared += status.get("RssShmem", 0)
        tables += status.get("VmPTE", 0)
        tasks += status.get("Threads", 0)
        _add_open_memory(process, memory_files, buffers)
    queued = _queued_bytes(processes, buffers)
    # A memory file that is mapped is seen twice: as shared pages and as an open file.
    other = tables * _KIB + max(shared * _KIB, sum(memory_files.values())) + sum(buffers.values()) + queued
    return Usage(tasks, pages * _KIB, other)


def kill(root: int) -> None:
    """End the process, its group and its descendants. They are stopped first, so that none starts another meanwhile."""
    known: set[int] = set()
    for _ in range(_MOST_KILL_ROUNDS):
        fresh = [process for process in members(root) if process not in known]
        if not fresh:
            break
        for process in fresh:
            _signal(process, signal.SIGSTOP)
        known.update(fresh)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    for process in known:
        _signal(process, signal.SIGKILL)


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _status(process: int, file: str = "status") -> dict[str, int]:
    """The numeric fields of such a file in /proc/PID; sizes are in KiB."""
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/{file}").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            number = value.split()
            if number and number[0].isdigit():
                fields[name] = int(number[0])
    return fields


def _add_open_memory(process: int, memory_files: dict[tuple[int, int], int], buffers: dict[str, int]) -> None:
    """Open files whose pages are memory that no mapping shows, by device and inode, and what the kernel may keep for
    each socket and pipe at most, by its name."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(entry.path)
                if name.startswith(_MEMORY_FILES):
                    stat = os.stat(entry.path)
                    memory_files[stat.st_dev, stat.st_ino] = stat.st_blocks * _BLOCK_BYTES
                elif name.startswith(("socket:", "pipe:")):
                    buffers[name] = _SOCKET_BUFFER_BYTES if name.startswith("socket:") else _PIPE_BYTES


def _queued_bytes(processes: list[int], buffers: dict[str, int]) -> int:
    """What waits in TCP connections, whose buffers grow by themselves: all of a network that is the tree's own, closed
    and passed sockets included; of this process's network those that the tree has open. Other sockets of a network of
    its own are added to `buffers`, those included that are on their way from one process to another."""
    for process in reversed(processes):  # the first of them stands outside the walls
        with contextlib.suppress(OSError):
            own = not os.path.samefile(f"/proc/{process}/ns/net", "/proc/self/ns/net")
            if not own and not buffers:
                return 0
            rows = {name: _read_sockets(process, name) for name in ("tcp", "tcp6", *(_INODES if own else ()))}
            for name, column in _INODES.items():
                buffers |= {f"socket:[{row[column]}]": _SOCKET_BUFFER_BYTES for row in rows.get(name, ())}
            connections = [row for row in (*rows["tcp"], *rows["tcp6"]) if own or f"socket:[{row[9]}]" in buffers]
            return sum(int(size, 16) for row in connections for size in row[4].split(":"))
    return 0


def _read_sockets(process: int, protocol: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/{process}/net/{protocol}").read_text().splitlines()[1:]]

"""Measures and kills a process with all that it started; a control group where the kernel holds its limits."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.runtime.limits import UNLIMITED, Limits

_KIB = 1024
_BLOCK_BYTES = 512
"""The unit of st_blocks (stat(2))."""
_MEMORY_FILES = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
_SHARED_ANONYMOUS = b"/dev/zero (deleted)"
"""How /proc/PID/maps names memory that is shared and belongs to no file."""
_SOCKET_BUFFER_BYTES = 212_992
"""net.core.wmem_default and rmem_default (net/core/sock.c); the walls refuse to enlarge them."""
_PIPE_BYTES = 65_536
"""pipe(7); the walls refuse to enlarge it."""
_MOST_KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree takes now."""

    memory_bytes: int
    tasks: int


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
    memory = tasks = 0
    memory_files: dict[tuple[int, int], int] = {}
    buffers: dict[str, int] = {}
    shared = 0
    processes = members(root)
    for process in processes:
        status = _status(process)
        shares = _status(process, "smaps_rollup") if proportional else {}
        memory += sum(shares.get(f"Pss_{kind}", status.get(f"Rss{kind}", 0)) for kind in ("Anon", "File"))
        shared += status.get("RssShmem", 0)
        memory += status.get("VmPTE", 0)
        tasks += status.get("Threads", 0)
        memory_files.update(_mapped_without_file(process))
        _add_open_memory(process, memory_files, buffers)
    # A memory file that is mapped is seen twice: as shared pages and as an open file.
    pages = memory * _KIB + max(shared * _KIB, sum(memory_files.values()))
    return Usage(pages + sum(buffers.values()) + _queued_bytes(processes, buffers), tasks)


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


def _mapped_without_file(process: int) -> Iterator[tuple[tuple[int, int], int]]:
    """All pages of shared anonymous memory, those included that are mapped by no process any more (MADV_DONTNEED,
    munmap of a part). Only root may ask (proc(5), map_files)."""
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_bytes().splitlines():
            if line.endswith(_SHARED_ANONYMOUS):
                first, _, last = line.split()[0].partition(b"-")
                with contextlib.suppress(OSError):  # its names have no leading zeros
                    stat = os.stat(f"/proc/{process}/map_files/{int(first, 16):x}-{int(last, 16):x}")
                    yield (stat.st_dev, stat.st_ino), stat.st_blocks * _BLOCK_BYTES


def _queued_bytes(processes: list[int], buffers: dict[str, int]) -> int:
    """What waits in TCP connections, whose buffers grow by themselves: all of a network that is the tree's own, closed
    and passed sockets included; of this process's network those that the tree has open."""
    for process in reversed(processes):  # the first of them stands outside the walls
        with contextlib.suppress(OSError):
            own = not os.path.samefile(f"/proc/{process}/ns/net", "/proc/self/ns/net")
            if not own and not buffers:
                return 0
            lines = [
                line.split()
                for name in ("tcp", "tcp6")
                for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
            ]
            queues = [fields[4].split(":") for fields in lines if own or f"socket:[{fields[9]}]" in buffers]
            return sum(int(sent, 16) + int(received, 16) for sent, received in queues)
    return 0


_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = {"memory", "pids"}
_REMOVE_TRIES = 50
_REMOVE_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A group of its own below the group of this process; removed by :meth:`kill`."""

    folder: Path

    @classmethod
    def create(cls, limits: Limits, root: Path = _ROOT, own: str | None = None) -> Cgroup | None:
        """A group with these limits; None where there is no cgroup v2, no controller for them, or no right to it."""
        if limits == UNLIMITED:
            return None
        parent = root / (_own_group() if own is None else own).lstrip("/")
        try:
            if not set((parent / "cgroup.controllers").read_text().split()) >= _CONTROLLERS:
                return None
            if not set((parent / "cgroup.subtree_control").read_text().split()) >= _CONTROLLERS:
                # Refused (EBUSY) where processes are in the parent itself: then it was not made for this.
                (parent / "cgroup.subtree_control").write_text("+memory +pids")
            group = cls(parent / f"planner-{uuid.uuid4().hex}")
            group.folder.mkdir()
        except OSError:
            return None
        try:
            (group.folder / "memory.max").write_text(str(limits.memory_bytes))
            (group.folder / "pids.max").write_text(str(limits.tasks))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with contextlib.suppress(OSError):  # not in every kernel
                    (group.folder / name).write_text(value)
        except OSError:
            group.kill()
            return None
        return group

    def add(self, pid: int) -> bool:
        """Put a process into the group, with whatever it starts from then on; False if that is not allowed."""
        try:
            (self.folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended a process of the group for its memory; asked before :meth:`kill` removes it."""
        with contextlib.suppress(OSError, ValueError):
            lines = (self.folder / "memory.events").read_text().splitlines()
            return any(name == "oom_kill" and int(value) > 0 for name, value in map(str.split, lines))
        return False

    def kill(self) -> None:
        """End all of its processes and remove it."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for _ in range(_REMOVE_TRIES):
            try:
                os.rmdir(self.folder)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(_REMOVE_PAUSE_SECONDS)
            else:
                return


def _own_group() -> str:
    """The group of this process in the hierarchy of version 2; the root where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            hierarchy, _, path = line.split(":", 2)
            if hierarchy == "0":
                return path
    return "/"

"""A control group (cgroup v2) for one child, where this process may make one: the kernel enforces its limits."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from planner.runtime.limits import UNLIMITED, Limits

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
                # Refused (EBUSY) where processes are in the parent itself: then whoever made it did not mean this.
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
        return self._count("memory.events", "oom_kill") > 0

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

    def _count(self, file: str, name: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            lines = (self.folder / file).read_text().splitlines()
            return sum(int(value) for key, value in (line.split() for line in lines) if key == name)
        return 0


def _own_group() -> str:
    """The group of this process in the hierarchy of version 2; the root where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            hierarchy, _, path = line.split(":", 2)
            if hierarchy == "0":
                return path
    return "/"

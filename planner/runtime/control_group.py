"""A control group in which the kernel bounds the memory and the tasks of a child with all that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.runtime.limits import UNLIMITED, Limit, Limits

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("pids", "memory")
_EVENTS = (
    (Limit.MEMORY, "memory.events", "oom_kill"),  # version 2
    (Limit.MEMORY, "memory.oom_control", "oom_kill"),  # version 1
    (Limit.TASKS, "pids.events", "max"),
)
"""Files of a group that count how often the kernel ended a process for its memory, or refused a task."""
_ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1"; shift; done 2>/dev/null; shift; exec "$@"'
"""A shell that puts itself into each group and becomes the command: nothing is started outside of them."""
_DELEGATED = "user.delegate"
"""The attribute of a group in which a service may make others (Delegate=, systemd 251)."""
_PREFIX = "planner-"
_ABANDONED_SECONDS = 3600.0
"""After which an empty group is one of a service that was killed; others are entered at once."""
_REMOVE_TRIES = 50
_REMOVE_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A group of its own below the group of this process; removed by :meth:`kill`."""

    folders: tuple[Path, ...]
    """One of version 2, or one for each controller of version 1."""

    @classmethod
    def create(cls, limits: Limits, root: Path = _ROOT, memberships: str = "") -> ControlGroup | None:
        """A group with these limits; None where there is no controller for them, or no right to it. `memberships` is
        the text of /proc/self/cgroup (default: this process's)."""
        if limits == UNLIMITED:
            return None
        with contextlib.suppress(OSError):
            of_controllers = _read_memberships(memberships or Path("/proc/self/cgroup").read_text())
            name = f"{_PREFIX}{uuid.uuid4().hex}"
            for prepare in (_prepare_version_2, _prepare_version_1):
                settings = prepare(root, of_controllers, name, limits)
                if settings and (group := cls._make(settings)) is not None:
                    return group
        return None

    @classmethod
    def can_be_made(cls) -> bool:
        """Whether this process may make one."""
        group = cls.create(Limits())
        if group is not None:
            group.kill()
        return group is not None

    @classmethod
    def _make(cls, settings: dict[Path, dict[str, int]]) -> ControlGroup | None:
        group = cls(tuple(settings))
        try:
            for folder, values in settings.items():
                _remove_abandoned(folder.parent)
                folder.mkdir()
                for file, value in values.items():
                    with contextlib.suppress(*(() if file in _REQUIRED else (OSError,))):
                        (folder / file).write_text(str(value))
        except OSError:
            group.kill()
            return None
        return group

    def enter(self) -> tuple[str, ...]:
        """What is put in front of a command so that it starts in the group."""
        return ("/bin/sh", "-c", _ENTER, "sh", *(str(folder / "cgroup.procs") for folder in self.folders), "--")

    def add(self, pid: int) -> bool:
        """Put a process into the group, with whatever it starts from then on; False if that is not allowed."""
        try:
            for folder in self.folders:
                (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def exceeded(self) -> Limit | None:
        """The limit for which the kernel has ended a process or refused one; asked before :meth:`kill`."""
        for limit, file, counter in _EVENTS:
            for folder in self.folders:
                with contextlib.suppress(OSError, ValueError):
                    counters = dict(line.split() for line in (folder / file).read_text().splitlines())
                    if int(counters.get(counter, 0)) > 0:
                        return limit
        return None

    def kill(self) -> None:
        """End all of its processes, those of groups below it included, and remove it."""
        for _ in range(_REMOVE_TRIES):
            for folder in self.folders:
                for inner, _, _ in os.walk(folder, topdown=False):
                    _end_group(Path(inner))
            if not any(map(os.path.exists, self.folders)):
                return
            time.sleep(_REMOVE_PAUSE_SECONDS)


_REQUIRED = ("memory.max", "memory.limit_in_bytes", "pids.max")
"""Without the others, which not every kernel has, the limit is less strict."""


def _prepare_version_2(
    root: Path, of_controllers: dict[str, str], name: str, limits: Limits
) -> dict[Path, dict[str, int]]:
    """What to write into which new folder; empty where none may be made: below the group of this process, or beside it
    in one that was delegated, since a group that bounds others has no processes itself."""
    own = root / of_controllers.get("", "")
    for parent in (own, own.parent):
        with contextlib.suppress(OSError):
            if parent == own.parent and os.getxattr(parent, _DELEGATED) != b"1":
                continue
            if set((parent / "cgroup.controllers").read_text().split()).issuperset(_CONTROLLERS):
                if not set((parent / "cgroup.subtree_control").read_text().split()).issuperset(_CONTROLLERS):
                    (parent / "cgroup.subtree_control").write_text("+memory +pids")  # EBUSY if processes are in it
                values = {"memory.max": limits.memory_bytes, "pids.max": limits.tasks}
                return {parent / name: {**values, "memory.swap.max": 0, "memory.oom.group": 1}}
    return {}


def _prepare_version_1(
    root: Path, of_controllers: dict[str, str], name: str, limits: Limits
) -> dict[Path, dict[str, int]]:
    """As above; version 1 has a hierarchy for each controller, and bounds swap and TCP by limits of their own."""
    memory = dict.fromkeys(
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"), limits.memory_bytes
    )
    values = {"memory": memory, "pids": {"pids.max": limits.tasks}}
    parents = {controller: root / controller / of_controllers.get(controller, "") for controller in _CONTROLLERS}
    if not all((parent / "cgroup.procs").exists() for parent in parents.values()):
        return {}
    return {parent / name: values[controller] for controller, parent in parents.items()}


def _read_memberships(text: str) -> dict[str, str]:
    """The group of a process by controller, without the first slash; by "" that of version 2."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    return {controller: row[2].lstrip("/") for row in rows for controller in row[1].split(",")}


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # EBUSY where there is a process in it
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                os.rmdir(folder)


def _end_group(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if (folder / "pids.max").exists():
            (folder / "pids.max").write_text("0")  # none of them starts another meanwhile
    for process in _processes(folder):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _processes(folder: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        # 0 is a process of another namespace; to kill(2) it is the caller's own group.
        yield from (int(line) for line in (folder / "cgroup.procs").read_text().split() if int(line) > 0)

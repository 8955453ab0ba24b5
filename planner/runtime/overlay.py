"""Discards what this process writes: every folder of the machine is covered by an overlay that ends with it.

It is made of Linux namespaces (unshare(2), mount(2)) and needs no privilege where users may have namespaces of their
own. Pseudo file systems (/proc, /sys, /dev) stay as they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from planner.errors import PlannerError

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
"""linux/sched.h"""
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
"""linux/mount.h"""
_PSEUDO = frozenset({
    "autofs", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "securityfs", "sysfs", "tracefs",
})  # fmt: skip
_DEEPEST = 3
_MEMORY = "/dev/shm/.discarded"
COVERED = f"{_MEMORY}/covered"
_SYSTEM = ("/proc", "/sys", "/dev", "/run")
_ROOT = Path(__file__).parents[2]
_FRONT = "import sys; sys.path.append(sys.argv[1]); from planner.runtime import overlay; overlay.start_over_folder()"


class OverlayError(PlannerError):
    """Writes cannot be discarded here."""


def discard_writes(most_bytes: int, kept: Sequence[Path] = ()) -> None:
    """From here on this process and its children write into memory, at most `most_bytes`, and nobody else sees it.

    Folders that are `kept` stay as they are: what is written there stays. Has to be called while the process has one
    thread. Raises OverlayError where it cannot be had; the process is then to be ended, for it may be half way.
    """
    try:
        here = os.getcwd()
        _enter_namespaces()
        saved = {str(path): _open(str(path)) for path in kept if path.is_dir()}
        memory = _Memory(most_bytes)
        for path, descriptor in [(path, _open(path)) for path in _covered_folders()]:
            _cover(path, descriptor, memory)
        for path, descriptor in saved.items():
            _mount(f"/proc/self/fd/{descriptor}", path, "", _MS_BIND, "")
        os.chdir(here)  # the same folder, as it is seen through the overlay
    except OSError as error:
        raise OverlayError(
            f"what the program writes cannot be discarded on this machine: {error}",
            allowed="Linux with overlayfs, as root or where users may have namespaces of their own",
            remedy="run it with --allow-writes in a folder where it may write",
        ) from None


def mount_processes() -> None:
    """In a new namespace of processes: /proc has those of it alone."""
    _mount("proc", "/proc", "proc", 0, "")


def front_of_command(folder: str, most_bytes: int) -> tuple[str, ...]:
    """The words before a command which then finds `folder` at :data:`COVERED`, through an overlay that everybody may
    write into, at most `most_bytes`, and that is gone with it. `folder` is an absolute path without links."""
    return (sys.executable, "-I", "-S", "-c", _FRONT, str(_ROOT), folder, str(most_bytes))


def start_over_folder() -> None:
    """What the words of :func:`front_of_command` run: becomes the command behind them, or ends with 1 and a line."""
    _, folder, most_bytes, *command = sys.argv[1:]
    try:
        _enter_namespaces()
        lower = _open(folder)
        if (path := os.readlink(f"/proc/self/fd/{lower}")) != folder:
            sys.exit(f"{folder} leads to {path} now")
        upper, work = _Memory(int(most_bytes)).folders()
        os.chmod(upper, 0o777)
        os.mkdir(COVERED)
        # In a place that nobody else sees: no link there can be made to lead elsewhere before the command is there.
        _mount_overlay(COVERED, lower, upper, work)
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{folder} cannot be covered by an overlay: {error}")


def _enter_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNS if user == 0 else _CLONE_NEWNS | _CLONE_NEWUSER
    _call("unshare", flags)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")


def _covered_folders() -> list[str]:
    """Top-level folders of the root, and whatever file systems are mounted below them; outermost first."""
    folders = {entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")  # where a file system is mounted, and its type (proc(5))
        path = before.split()[4].encode().decode("unicode_escape")
        if after.split()[0] not in _PSEUDO and os.path.isdir(path):
            folders.add(path)
    covered = (path for path in folders if path != "/" and not path.startswith(_SYSTEM))
    return sorted(covered, key=lambda path: path.count("/"))


class _Memory:
    """A file system in memory, on a folder that is part of none that is covered."""

    def __init__(self, most_bytes: int) -> None:
        _mount("tmpfs", "/dev/shm", "tmpfs", 0, f"size={most_bytes},mode=1777")
        self._folders = 0

    def folders(self) -> tuple[str, str]:
        """An upper folder and a working folder for one overlay."""
        self._folders += 1
        upper, work = (f"{_MEMORY}/{self._folders}/{name}" for name in ("upper", "work"))
        os.makedirs(upper)
        os.makedirs(work)
        return upper, work


def _cover(path: str, descriptor: int, memory: _Memory, depth: int = 0) -> None:
    """By an overlay; a folder that has one of the machine's own mounts below it by overlays of the folders in it."""
    upper, work = memory.folders()
    os.chmod(upper, os.stat(f"/proc/self/fd/{descriptor}").st_mode & 0o7777)
    try:
        _mount_overlay(path, descriptor, upper, work)
    except OSError as error:
        if error.errno != errno.EINVAL or os.access(path, os.W_OK):
            raise
        # Nobody writes into it itself.
        if depth < _DEEPEST:
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    _cover(entry.path, _open(entry.path), memory, depth + 1)


def _mount_overlay(path: str, descriptor: int, upper: str, work: str) -> None:
    _mount("overlay", path, "overlay", 0, f"lowerdir=/proc/self/fd/{descriptor},upperdir={upper},workdir={work}")


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY)


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode())


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        what = f"{name} {arguments[1].decode()}" if name == "mount" and isinstance(arguments[1], bytes) else name
        raise OSError(code, f"{what}: {os.strerror(code)}")

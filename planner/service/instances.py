"""Locks the folder of a running service; the next start removes what a dead one left."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LONGEST_FOLDER = 16
"""Characters of the folder above: a Unix socket's name may have 107, of which Ray takes 88 and our folder 11."""
PREFIX, LOCK = "pl", "planner.lock"
VARIABLE = "PLANNER_INSTANCE"
"""In the environment of every process of a service: its folder."""
END_SECONDS = 10.0
_log = logging.getLogger("planner.service")


@contextlib.contextmanager
def instance_folder() -> Iterator[Path]:
    """A folder for the sockets of Ray, whose names may have about a hundred characters; gone after use.

    Its lock is held until the block ends or this process does, however it ends.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_parents()[0]))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)  # children do not inherit it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep_dead_instances() -> list[Path]:
    """End the processes and remove the folders of services that have died; which folders those were.

    Another service that runs is left alone: its lock is held, whatever its process id is called from here.
    """
    swept = []
    for parent in _parents():
        for folder in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError), _lock_of_the_dead(folder):
                end_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
                _log.warning("swept what an earlier service left in %s", folder)
    return swept


def end_processes(folder: Path) -> None:
    """Kill every process of the service that has this folder, and wait until they are gone."""
    until = time.monotonic() + END_SECONDS
    while (found := _processes(folder)) and time.monotonic() < until:
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _parents() -> list[Path]:
    """Where folders are made, and where they may have been made under another TMPDIR."""
    usual, other = Path(tempfile.gettempdir()), Path("/tmp")
    first = usual if len(str(usual)) <= LONGEST_FOLDER else other
    return list(dict.fromkeys([first, other]))


@contextlib.contextmanager
def _lock_of_the_dead(folder: Path) -> Iterator[None]:
    """Raises OSError if the folder is not a service's of this user, or its service lives."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise NotADirectoryError(folder)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _processes(folder: Path) -> list[int]:
    """Those that have the folder in their environment, or write to a file in it; never this process."""
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if _belongs(each, folder)]


def _belongs(process: Path, folder: Path) -> bool:
    try:
        if process.stat().st_uid != os.geteuid() or int(process.name) == os.getpid() or not _runs(process):
            return False
        if f"{VARIABLE}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        # Ray's workers and agents write their title over their environment.
        return any(_is_written(each, folder) for each in (process / "fd").iterdir())
    except OSError:  # it has ended, or is not ours
        return False


def _is_written(descriptor: Path, folder: Path) -> bool:
    """Whether it is a file in the folder that is open for writing: who only reads a log is somebody else."""
    with contextlib.suppress(FileNotFoundError):  # closed since
        return bool(descriptor.lstat().st_mode & stat.S_IWUSR) and os.readlink(descriptor).startswith(f"{folder}/")
    return False


def _runs(process: Path) -> bool:
    """Whether it is more than an entry that nobody has waited for."""
    return (process / "stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")

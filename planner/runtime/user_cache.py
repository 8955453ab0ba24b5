"""Where planner keeps on disk, for this user, what it has made."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_VARIABLE = "PLANNER_CACHE"
NONE = "none"
"""In place of a folder: nothing is kept."""


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """planner's folder in the user's cache (XDG_CACHE_HOME); where that can neither be written nor has the native part
    already, as with a read-only home or none, one of this user's among temporary files."""
    named = environment.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no HOME, and a user whom the system does not know
        folder = (Path(named) if named else Path.home() / ".cache").absolute() / "planner"
        if _is_usable(folder):
            return folder
    return _temporary_cache()


@functools.lru_cache(maxsize=64)  # once for all: behind an overlay every folder seems writable
def _is_usable(folder: Path) -> bool:
    there = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
        return True
    with contextlib.suppress(OSError):  # in a folder of somebody else
        return any(folder.glob("paper-*"))
    return False


@functools.cache
def _temporary_cache() -> Path:
    """Its parent is this user's alone: what lies there is loaded as code."""
    parent = Path(tempfile.gettempdir()) / f"planner-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        parent = Path(tempfile.mkdtemp(prefix="planner-"))
    return parent / "planner"


def traces_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of traces: the one that PLANNER_CACHE names; None where that says `none`."""
    named = environment.get(_VARIABLE)
    if named == NONE:
        return None
    return Path(named) if named else user_cache(environment) / "traces"


def inductor_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of what Inductor compiled: below the one that PLANNER_CACHE names; None where that says `none`."""
    named = environment.get(_VARIABLE)
    if named == NONE:
        return None
    return (Path(named) if named else user_cache(environment)) / "inductor"


def kept_folders(environment: Mapping[str, str] = os.environ) -> Sequence[Path]:
    """The folders in which a child process leaves what it has made, there from now on where they can be."""
    own, inductor = user_cache(environment), inductor_folder(environment)
    modes = {own: 0o777, **({inductor.absolute(): 0o700} if inductor is not None else {})}
    for folder, mode in modes.items():
        with contextlib.suppress(OSError):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
    return tuple(modes)

"""Where Inductor keeps what it has compiled: a folder of planner's own, for processes that may share it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.paper.variables import variable_set
from planner.runtime.user_cache import inductor_folder

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def kept() -> Iterator[None]:
    """Inside, Inductor's files lie where planner keeps them (`inductor_folder`); in a folder of their own, removed at
    the end, where that is not writable, or nothing is to be kept.

    Inductor writes every file under another name first and renames it: several processes may use the folder.
    """
    with _folder() as folder, variable_set(_FOLDER, folder):
        yield


@contextmanager
def _folder() -> Iterator[str]:
    shared = inductor_folder()
    if shared is not None and _can_write(shared):
        yield str(shared)
        return
    with tempfile.TemporaryDirectory(prefix="planner-inductor-") as own:
        yield own


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def tag(target: str) -> str:
    """What generated code depends on beside the program, torch and Inductor's settings: this folder, and the target."""
    digest = hashlib.sha256(target.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"planner-{digest.hexdigest()[:16]}"

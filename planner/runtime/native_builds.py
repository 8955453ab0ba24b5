"""What is built once for a torch, by the C++ compiler of the machine, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from planner.distribution import install_command
from planner.errors import TraceError
from planner.runtime.user_cache import user_cache


def find_torch() -> Path:
    """The folder of the torch that this process would import. Raises TraceError if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise TraceError("torch is not installed", remedy=install_command("plan"))
    return Path(spec.origin).parent


def find_compiler(subject: str) -> str:
    """That builds the `subject`. Raises TraceError if there is none."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise TraceError(
            f"{subject} has to be built once for this torch, and there is no C++ compiler",
            allowed="g++ or clang++ on the PATH, or the one that CXX names",
            remedy="install g++ (Debian: apt-get install g++)",
        )
    return compiler


def build_once(name: str, last: str, build: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache; `build` fills it where the file `last` is missing, which it writes last."""
    folder = user_cache() / name
    if (folder / last).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: what it builds is as good as ours
        if not (folder / last).exists():
            build(folder)
    return folder

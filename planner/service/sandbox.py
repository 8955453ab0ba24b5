"""Where a user's code runs: no network, a read-only system without anybody's files, and limits of what it may take.

The walls are bubblewrap's, which needs user namespaces; where there are none, only the limits hold, and it is said.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from planner.tracing.isolated import Limits
from planner.units import MIB

FILE_BYTES = 512 * MIB
"""The largest file that it may write, its answer included."""
TMP_BYTES = 256 * MIB
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_PACKAGE = Path(__file__).parents[1]
_log = logging.getLogger("planner.service")


def command(limits: Limits, folder: str = "") -> tuple[str, ...]:
    """What is put in front of the command of a process that runs a user's code from `folder`, which it may read."""
    limited = _resource_limits(limits)
    if not has_walls():
        return (*_dies_with_parent(), *limited, *_environment())
    return (*_walls(folder), *limited, *_environment())


@functools.cache
def has_walls() -> bool:
    """Whether bubblewrap works here; tried once, and told if not."""
    trial = [*_walls(""), "true"]
    try:
        ended = subprocess.run(trial, capture_output=True, timeout=20, check=False)
        problem = ended.stderr.decode(errors="replace").strip() if ended.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        _log.warning("factories run with resource limits only, without walls (bubblewrap): %s", problem)
    return not problem


def _walls(folder: str) -> tuple[str, ...]:
    readable = [path for path in (*_SYSTEM, *_ETC, *_python(), str(_cache()), folder) if path and os.path.exists(path)]
    binds = [part for path in _outermost(readable) for part in ("--ro-bind", path, path)]
    return (
        "bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL",
        "--die-with-parent", "--new-session", "--hostname", "sandbox",
        "--size", str(TMP_BYTES), "--tmpfs", "/tmp", *binds, "--proc", "/proc", "--dev", "/dev",
        "--size", str(TMP_BYTES), "--tmpfs", "/dev/shm",
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--",
    )  # fmt: skip


def _python() -> list[str]:
    """The interpreter, its packages, and planner itself; not the folder in which planner's checkout lies."""
    return [sys.prefix, sys.base_prefix, *site.getsitepackages(), str(_PACKAGE)]


def _outermost(paths: list[str]) -> list[str]:
    """In an order in which no bind hides another: a link stays a path of its own."""
    return sorted(dict.fromkeys(paths), key=lambda path: path.count("/"))


def _cache() -> Path:
    """Where the native library of the paper GPU was built, by the process that traces."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "planner"


def _environment() -> tuple[str, ...]:
    """Nothing of ours: not the database's password, not a token."""
    kept = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(_cache().parent),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return ("env", "-i", *(f"{name}={value}" for name, value in kept.items()))


def _resource_limits(limits: Limits) -> tuple[str, ...]:
    if shutil.which("prlimit") is None:
        return ()
    seconds = math.ceil(limits.seconds) * (os.cpu_count() or 1)
    # No --as: paper reserves a great deal of address space. No --nproc: it counts all that runs under this user.
    return ("prlimit", f"--cpu={seconds}", "--nofile=1024", f"--fsize={FILE_BYTES}", "--core=0", "--")


def _dies_with_parent() -> tuple[str, ...]:
    return ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()

"""An ordinary user of this machine, for what must not hinge on being root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from planner.runtime.user_cache import user_cache

ROOT = Path(__file__).parents[2]
USER = 4321


def as_user(*folders: Path) -> list[str]:
    """What is put in front of a command so that it runs as an ordinary user who may read these folders.

    Where root's home is closed to others, its interpreter is shown at the same place.
    """
    interpreter = [sys.prefix, sys.base_prefix, str(user_cache()), str(ROOT), *map(str, folders)]
    shown = [part for path in interpreter if os.path.exists(path) for part in ("--ro-bind", path, path)]
    above = {str(parent) for path in interpreter for parent in Path(path).parents} - {"/"}
    parents = sorted(above, key=lambda path: path.count("/"))
    opened = [part for path in parents if path in ("/root", "/tmp") for part in ("--perms", "1777", "--tmpfs", path)]
    made = [part for path in parents for part in ("--perms", "0755", "--dir", path)]
    return [
        "bwrap", "--dev-bind", "/", "/", *opened, *made, *shown, "--",
        "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--no-new-privs", "--",
        "env", "HOME=/nonexistent",
    ]  # fmt: skip

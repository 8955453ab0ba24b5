"""The distribution that planner is installed from: its name in package registries, its version, what extras bring.

The registry's `planner` belongs to somebody else: only the command and the package are called so.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence

from planner.errors import PlannerError

NAME = "gpu-memory-planner"
PLANNING = ("transformers>=5.0", "numpy", "pyyaml>=6.0")
"""What planning needs beside torch: the base install and the extra `plan` (pyproject.toml)."""


def version() -> str:
    """The version that is installed; `none` where planner runs without an installation."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def install_command(extra: str = "") -> str:
    """What a person types where planner is installed: an extra of it is added without asking an index for planner."""
    return f"pip install '{NAME}[{extra}]'" if extra else f"pip install {NAME}"


def refuse_without(modules: Sequence[str], *, extra: str, user: str) -> None:
    """Raises PlannerError if one of the modules that `user` needs, all of one extra, is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise PlannerError(f"{user} needs what is not installed: {', '.join(missing)}", remedy=install_command(extra))

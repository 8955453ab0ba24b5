"""The distribution that planner is installed from: its name in package registries, its version, what extras bring.

The registry's `planner` belongs to somebody else: only the command and the package are called so.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
from collections.abc import Sequence

from planner.errors import PlannerError, SpecError

NAME = "gpu-memory-planner"
EXTRAS = {
    "plan": ("torch>=2.6,<2.16", "transformers>=5.0", "numpy", "nvidia-ml-py>=13", "peft>=0.17"),
    "deepspeed": ("deepspeed>=0.19.8,<0.20",),
    "service": ("ray[serve]>=2.60", "prometheus-client>=0.21", "sqlalchemy>=2.0.30", "alembic>=1.16"),
    "postgresql": ("psycopg[binary]>=3.1",),
    "kubernetes": ("kubernetes>=37", "starlette>=0.45", "uvicorn>=0.34"),
    "completion": ("shtab>=1.7",),
}
"""What each extra of pyproject.toml brings besides other extras. Here too, since planner's code also runs where planner
is not installed: in environments of other torches."""
PLANNING = (*(each for each in EXTRAS["plan"] if not each.startswith("torch")), "pyyaml>=6.0")
"""What planning needs beside torch: the base install and the extra `plan`."""


def version() -> str:
    """The version that is installed; `none` where planner runs without an installation."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def install_command(extra: str) -> str:
    """What a person types to get what the extra brings and this Python lacks. It names packages rather than planner,
    which is on no index: what an index has under its name is not ours."""
    below = EXTRAS["plan"] if extra in ("deepspeed", "service") else ()
    missing = [each for each in (*below, *EXTRAS[extra]) if not _is_installed(each)]
    return f"pip install {shlex.join(missing or EXTRAS[extra])}"


def _is_installed(requirement: str) -> bool:
    name = re.match(r"[\w.-]+", requirement)
    assert name
    try:
        importlib.metadata.version(name[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def refuse_without(modules: Sequence[str], *, extra: str, user: str, place: str = "") -> None:
    """Raises PlannerError, SpecError with a `place`, if one of the modules that `user` needs, all of one extra, is not
    installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        error = SpecError if place else PlannerError
        message = f"{user} needs what is not installed: {', '.join(missing)}"
        raise error(message, remedy=install_command(extra), place=place)

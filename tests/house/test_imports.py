"""Pure packages stay light: hooks and small machines import them without torch, transformers and Ray."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "ray", "numpy", "pydantic")
ROOMS = [
    "planner",
    "planner.job",
    "planner.admission",
    "planner.job.named_jobs",
    "planner.cli",
    "planner.service.history.store",
]


def modules_of(room: str) -> list[str]:
    """The package and every module in it; for the root itself none, since they are other packages."""
    found = import_module(room)
    paths = getattr(found, "__path__", []) if room != "planner" else []
    return [room, *(module.name for module in pkgutil.walk_packages(paths, f"{room}."))]


@pytest.mark.parametrize("room", ROOMS)
def test_importing_all_of_a_room_loads_nothing_heavy(room: str) -> None:
    imports = "; ".join(f"import {module}" for module in modules_of(room))
    code = f"import sys; {imports}; print([name for name in {HEAVY} if name in sys.modules])"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)

    assert ended.stdout == "[]\n"


def test_the_root_imports_nothing_of_planner_before_it_is_asked_for() -> None:
    """Whatever it imported, every room would import."""
    code = "import sys, planner; print([name for name in sys.modules if name.startswith('planner.')])"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)

    assert ended.stdout == "[]\n"

"""The allocator is a pure package."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import planner.allocator


def test_importing_the_allocator_loads_neither_torch_nor_ray() -> None:
    modules = ["planner.allocator." + module.name for module in pkgutil.iter_modules(planner.allocator.__path__)]
    script = f"import sys, {', '.join(modules)}; print([m for m in ('torch', 'ray', 'numpy') if m in sys.modules])"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout == "[]\n"

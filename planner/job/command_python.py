"""Finds the Python that a command behind `planner run --` starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.job.launching.layers import Surrounding, local_text, unwrap
from planner.runtime.environments.interpreters import (
    python_in,
    python_of_command,
    python_of_conda,
    python_of_project,
)


def find_python(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """The path of the Python, started with these variables; empty where the command names none that is here."""
    unwrapped = unwrap(words, local_text, environment)
    if not unwrapped.words:
        return ""
    folder, around = Path(unwrapped.folder), {**environment, **unwrapped.environment}
    if unwrapped.surrounding is None or "/" in unwrapped.words[0]:
        python = python_of_command(unwrapped.words[0], folder, around)
    else:
        python = _surrounding_python(unwrapped.surrounding, folder, around)
    return os.path.abspath(python) if python else ""


def _surrounding_python(surrounding: Surrounding, folder: Path, environment: Mapping[str, str]) -> str:
    options = surrounding.options
    match surrounding.tool:
        case "uv":
            # The project's own; one that uv makes for this command alone (`--with`) is not there before or after it.
            if {"with", "w", "with_requirements", "with_editable", "isolated"} & options.keys():
                return ""
            if "active" in options and environment.get("VIRTUAL_ENV"):
                return python_in(Path(environment["VIRTUAL_ENV"]))
            named = options.get("python") or options.get("p") or ""
            if "/" in named:
                return python_in(folder / named) or python_of_command(named, folder, environment)
            inside = environment.get("UV_PROJECT_ENVIRONMENT") or ".venv"
            return python_of_project(folder / (options.get("project") or ""), inside)
        case "conda" | "mamba" | "micromamba":
            name, prefix = (options.get("n") or options.get("name")), (options.get("p") or options.get("prefix"))
            if not name and not prefix:
                prefix = environment.get("CONDA_PREFIX")
            return python_of_conda(name or "base", prefix or "", folder, environment)
        case "pixi":
            return python_of_project(folder, ".pixi/envs/default")
        case "activate":
            return python_in(folder / Path(options["prefix"] or "").expanduser())
    return python_of_project(folder)

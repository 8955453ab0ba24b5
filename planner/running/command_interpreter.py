"""Finds the Python that a command of `planner run` would start: of its launcher, or of what stands around that."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner.environments.named_pythons import (
    python_in,
    python_of_command,
    python_of_conda,
    python_of_project,
)
from planner.running.launch_line import local_text
from planner.running.launch_wrappers import Surrounding, unwrap


def find_python(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """The path of the Python, started with these variables; empty where the command names none that is here."""
    found = unwrap(words, local_text, environment)
    if not found.words:
        return ""
    folder = Path(found.folder)
    around = {**environment, **found.environment}
    if found.surrounding is None or "/" in found.words[0]:
        python = python_of_command(found.words[0], folder, around)
    else:
        python = _READERS.get(found.surrounding.tool, _of_project)(found.surrounding, folder, around)
    return os.path.abspath(python) if python else ""


def _of_uv(uv: Surrounding, folder: Path, environment: Mapping[str, str]) -> str:
    """The project's own; one that uv makes for this command alone (`--with`) is not there before or after it."""
    options = uv.options
    if {"with", "w", "with_requirements", "with_editable", "isolated"} & options.keys():
        return ""
    if "active" in options and environment.get("VIRTUAL_ENV"):
        return python_in(Path(environment["VIRTUAL_ENV"]))
    named = options.get("python") or options.get("p") or ""
    if "/" in named:
        return python_in(folder / named) or python_of_command(named, folder, environment)
    inside = environment.get("UV_PROJECT_ENVIRONMENT") or ".venv"
    return python_of_project(folder / (options.get("project") or ""), inside)


def _of_conda(conda: Surrounding, folder: Path, environment: Mapping[str, str]) -> str:
    options = conda.options
    name, prefix = (options.get("n") or options.get("name")), (options.get("p") or options.get("prefix"))
    if not name and not prefix:
        prefix = environment.get("CONDA_PREFIX")
    return python_of_conda(name or "base", prefix or "", folder, environment)


def _of_pixi(_pixi: Surrounding, folder: Path, _environment: Mapping[str, str]) -> str:
    return python_of_project(folder, ".pixi/envs/default")


def _of_project(_tool: Surrounding, folder: Path, _environment: Mapping[str, str]) -> str:
    return python_of_project(folder)


def _of_activated(activated: Surrounding, folder: Path, _environment: Mapping[str, str]) -> str:
    return python_in(folder / Path(activated.options["prefix"] or "").expanduser())


_READERS: Mapping[str, Callable[[Surrounding, Path, Mapping[str, str]], str]] = {
    "uv": _of_uv,
    "conda": _of_conda,
    "mamba": _of_conda,
    "micromamba": _of_conda,
    "pixi": _of_pixi,
    "activate": _of_activated,
}

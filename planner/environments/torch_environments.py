"""Environments of planner's own, one for each minor version of torch, in the user's cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.environments.interpreter import Interpreter
from planner.errors import PlannerError
from planner.facts.versions import minor_of
from planner.runtime.user_cache import user_cache


def environment_folder(version: str) -> Path:
    """Where the environment of this torch lies, or would lie."""
    minor = minor_of(version)
    if not minor:
        raise PlannerError(f"{version[:80]!r} is no version of torch", allowed="two numbers, as 2.8")
    return user_cache() / "environments" / f"torch-{minor}"


def find_environment(version: str) -> Interpreter | None:
    """The environment of this minor version of torch, if it has been made. Only folders are looked at."""
    return _read_folder(environment_folder(version), minor_of(version))


def list_environments() -> Sequence[Interpreter]:
    """All that have been made, from the oldest torch to the newest."""
    folders = (user_cache() / "environments").glob("torch-*")
    found = [_read_folder(each, each.name.removeprefix("torch-")) for each in folders]
    return sorted(filter(None, found), key=lambda each: [int(part) for part in each.minor.split(".")])


def _read_folder(folder: Path, minor: str) -> Interpreter | None:
    python = folder / "bin" / "python"
    for metadata in folder.glob(f"lib/python3.*/site-packages/torch-{minor}.*.dist-info"):
        if python.exists():
            torch = metadata.name.removeprefix("torch-").removesuffix(".dist-info")
            return Interpreter(str(python), metadata.parents[1].name.removeprefix("python"), torch)
    return None

"""Which packages a program's own files ask for: requirements*.txt and pyproject.toml beside it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from planner.running.outside.packages import canonical

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_MOST_BYTES = 1 << 20


def listed(folders: Iterator[Path] | list[Path]) -> dict[str, str]:
    """Names as pip compares them, each with the file that asks for it (`requirements.txt`)."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("requirements*.txt")):
            _note(found, _text(path).splitlines(), path)
        path = folder / "pyproject.toml"
        if path.is_file():
            _note(found, _of_project(_text(path)), path)
    return found


def _note(found: dict[str, str], lines: list[str], path: Path) -> None:
    for line in lines:
        name = _NAME.match(line)
        if name is not None:
            found.setdefault(canonical(name[1]), path.name)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _of_project(text: str) -> list[str]:
    """Dependencies, also optional ones: whoever lists them installs them on the machines of the job."""
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError:
        return []
    if not isinstance(project, dict):
        return []
    optional = project.get("optional-dependencies", {})
    groups = [project.get("dependencies", []), *(optional.values() if isinstance(optional, dict) else ())]
    return [str(each) for group in groups if isinstance(group, list) for each in group]

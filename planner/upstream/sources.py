"""The Python source of a target, found in the files of its package: nothing is imported for it."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from planner.upstream.entries import Entry


def folder_of(package: str) -> Path | None:
    """Where an installed package lies; None if it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent


def source(entry: Entry, folder: Path) -> str:
    """The target's source in the package at `folder`; empty if the target is not there."""
    return _definition(_text(_file(entry.module, folder)), entry.name.split("."))


def digest(entry: Entry, folder: Path) -> str:
    """A digest of the target's source in the package at `folder`, comments and blank lines left out.

    Empty if the target is not there.
    """
    text = source(entry, folder)
    if not text:
        return ""
    told = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def _file(module: str, folder: Path) -> Path:
    inside = folder.joinpath(*module.split(".")[1:])
    return inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")


def _text(path: Path) -> str:
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=64)
def _read(path: Path, _written: int) -> str:
    return path.read_text()


def _definition(text: str, names: list[str]) -> str:
    """The source of the innermost of nested definitions; empty if there is none."""
    indent = None
    for depth in range(len(names)):
        found = list(_begins(text, _unmangle(names, depth), indent))
        if not found:
            return ""
        begin = found[-1]  # the last of several: those before it are overloads
        text = text[begin : _end(text, begin)]
        indent = _indent(text) + 4
    return text


def _begins(text: str, name: str, indent: int | None) -> Iterator[int]:
    """Where lines begin that define this name, at this indentation, or at any."""
    for word in ("def ", "class "):
        at = text.find(word + name)
        while at >= 0:
            line = text.rfind("\n", 0, at) + 1
            after = text[at + len(word) + len(name)]
            before = text[line:at].removesuffix("async ")
            if before.strip() == "" and after in "(:[" and indent in (None, len(before)):
                yield line
            at = text.find(word + name, at + 1)


def _end(text: str, begin: int) -> int:
    """Where the definition that begins here has ended: at a line that is indented no more, and closes no bracket."""
    most = _indent(text[begin:])
    at = text.find("\n", begin) + 1
    while at:
        line = text[at : at + most + 1]
        if line.strip() and (said := line.lstrip()) and said[0] not in "#)]}":
            return at
        at = text.find("\n", at) + 1
    return len(text)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _unmangle(names: list[str], depth: int) -> str:
    """`__name` of a class is `_Class__name` outside of it."""
    owner = f"_{names[depth - 1].lstrip('_')}__" if depth else ""
    return f"__{names[depth].removeprefix(owner)}" if owner and names[depth].startswith(owner) else names[depth]

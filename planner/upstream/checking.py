"""Whether the sources of the installed torch, transformers and DeepSpeed are those that the table was written for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from planner.errors import TraceError
from planner.upstream import table
from planner.upstream.entries import Change, Entry

DIGESTS = Path(__file__).with_name("digests.json")
"""By package and version the digests of all targets with a source; written by `python -m planner.upstream`."""
_LOG = logging.getLogger("planner.upstream")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A target that is not as it was known."""

    entry: Entry
    problem: str

    @property
    def is_refused(self) -> bool:
        return self.entry.change is Change.REFUSED


@cache
def read_digests() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """By package, then by version (`2.13`), the digest of each target; empty for one that this version lacks."""
    content: dict[str, dict[str, dict[str, str]]] = json.loads(DIGESTS.read_text())
    return content


def minor(version: str) -> str:
    """`2.13` for `2.13.0+cpu`."""
    return ".".join(version.split("+")[0].split(".")[:2])


@cache
def enforce(part: str = "") -> None:
    """Compares the installed packages with the table, once for the process; with what this part of planner needs.

    Raises TraceError where plans could be wrong; logs one warning for each package of an unknown version and one for
    all that only makes plans say less.
    """
    found: list[Finding] = []
    for package in read_digests():
        folder = folder_of(package)
        if folder is None:
            continue
        version = minor(importlib.metadata.version(package))
        needed = [entry for entry in table.TABLE if entry.part == part]
        of_package = compare(needed, package, version, folder)
        _report(package, version, of_package)
        found += of_package
    refused = [each for each in found if each.is_refused]
    if refused:
        raise _refusal(refused)


def compare(entries: Iterable[Entry], package: str, version: str, folder: Path) -> list[Finding]:
    """What differs between the package in `folder` and what is known of this version, or of any if it is unknown."""
    mine = [entry for entry in entries if entry.package == package]
    return [finding for entry in mine if (finding := _compare_entry(entry, version, folder)) is not None]


def _compare_entry(entry: Entry, version: str, folder: Path) -> Finding | None:
    if not entry.has_source:
        return None if entry.optional or _is_there(entry) else Finding(entry, "is not there")
    versions = read_digests()[entry.package]
    expected = {versions[version].get(entry.target, "")} if version in versions else _of_any(entry, versions)
    there = digest(entry, folder)
    if there in expected:
        return None
    return Finding(entry, "has changed" if there else "is not there")


def _of_any(entry: Entry, versions: Mapping[str, Mapping[str, str]]) -> set[str]:
    found = {each.get(entry.target, "") for each in versions.values()}
    return found | {""} if entry.optional else found - {""}


def _is_there(entry: Entry) -> bool:
    """As far as can be said without importing what a step may not need; what a patch creates has not to be there."""
    owner = sys.modules.get(entry.module)
    if owner is None or entry.created:
        return True
    for name in entry.name.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def _report(package: str, version: str, found: Sequence[Finding]) -> None:
    versions = read_digests()[package]
    if version not in versions:
        _LOG.warning("planner knows %s %s, not %s", package, ", ".join(versions), version)
    reported = [each for each in found if not each.is_refused]
    if reported:
        _LOG.warning(
            "%s %s is not as planner knows it, and plans may say less: %s", package, version, _format_findings(reported)
        )


def _format_findings(found: Sequence[Finding]) -> str:
    shown = "; ".join(f"{each.entry.target.replace(':', '.')} {each.problem}" for each in found[:_SHOWN])
    return shown if len(found) <= _SHOWN else f"{shown}; and {len(found) - _SHOWN} more"


def _refusal(found: Sequence[Finding]) -> TraceError:
    package = found[0].entry.package
    version = importlib.metadata.version(package)
    return TraceError(
        f"{package} {version} is not as planner knows it, and its plans could be wrong: {_format_findings(found)}",
        allowed=f"{package} {', '.join(read_digests()[package])}",
        remedy=f"install one of these versions of {package}",
    )


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

"""Whether the sources of the installed torch, transformers and DeepSpeed are those that the table was written for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from planner.errors import TraceError
from planner.upstream import table
from planner.upstream.entries import Change, Entry
from planner.versions import minor_of, newer_than_tested

DIGESTS = Path(__file__).with_name("digests.json")
"""By package and version the digests of all targets with a source; written by `python -m planner.upstream`."""
_LOG = logging.getLogger("planner.upstream")
_SHOWN = 5


class Finding(NamedTuple):
    """A target that is not as it was known."""

    entry: Entry
    problem: str


@cache
def read_digests() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """By package, then by version (`2.13`), the digest of each target; empty for one that this version lacks."""
    content: dict[str, dict[str, dict[str, str]]] = json.loads(DIGESTS.read_text())
    return content


@cache
def enforce(part: str = "") -> None:
    """Compares the installed packages with the table, once for the process; with what this part of planner needs.

    Raises TraceError where plans could be wrong; logs one warning for all that only makes plans say less, and without a
    part one for each package of an unknown version.
    """
    refused: list[Finding] = []
    for package, versions in read_digests().items():
        folder = find_folder(package)
        if folder is None:
            continue
        version = minor_of(importlib.metadata.version(package))
        said_in_plans = newer_than_tested({package: version})
        if version not in versions and not part and not said_in_plans:
            _LOG.warning("planner knows %s %s, not %s", package, ", ".join(versions), version)
        findings = compare([entry for entry in table.TABLE if entry.part == part], package, version, folder)
        if reported := [finding for finding in findings if finding.entry.change is not Change.REFUSED]:
            _LOG.warning(
                "%s %s is not as planner knows it, and plans may say less: %s", package, version, _format(reported)
            )
        refused += [finding for finding in findings if finding.entry.change is Change.REFUSED]
    if refused:
        package = refused[0].entry.package
        version = importlib.metadata.version(package)
        raise TraceError(
            f"{package} {version} is not as planner knows it, and its plans could be wrong: {_format(refused)}",
            allowed=f"{package} {', '.join(read_digests()[package])}",
            remedy=f"install one of these versions of {package}",
        )


def _format(findings: Sequence[Finding]) -> str:
    shown = "; ".join(f"{entry.target.replace(':', '.')} {problem}" for entry, problem in findings[:_SHOWN])
    return shown if len(findings) <= _SHOWN else f"{shown}; and {len(findings) - _SHOWN} more"


def compare(entries: Iterable[Entry], package: str, version: str, folder: Path) -> list[Finding]:
    """What differs between the package in `folder` and what is known of this version, or of any if it is unknown."""
    findings = []
    for entry in entries:
        if entry.package != package:
            continue
        if not entry.has_source:
            if not (entry.optional or _is_there(entry)):
                findings.append(Finding(entry, "is not there"))
            continue
        versions = read_digests()[package]
        if version in versions:
            expected = {versions[version].get(entry.target, "")}
        else:
            known = {digests.get(entry.target, "") for digests in versions.values()}
            expected = known | {""} if entry.optional else known - {""}
        if (there := digest(entry, folder)) not in expected:
            findings.append(Finding(entry, "has changed" if there else "is not there"))
    return findings


def _is_there(entry: Entry) -> bool:
    """As far as can be said without importing what a step may not need."""
    owner = sys.modules.get(entry.module)
    if owner is None:
        return True
    for name in entry.name.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def find_folder(package: str) -> Path | None:
    """Where an installed package lies; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def source(entry: Entry, folder: Path) -> str:
    """The target's source in the package at `folder`; empty if the target is not there."""
    inside = folder.joinpath(*entry.module.split(".")[1:])
    path = inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")
    try:
        text = _read(path, path.stat().st_mtime_ns)
    except OSError:
        return ""
    indent, owner = None, ""
    for name in entry.name.split("."):
        # `__name` of a class is `_Class__name` outside of it.
        mangled = f"_{owner.lstrip('_')}__" if owner else ""
        inner = f"__{name.removeprefix(mangled)}" if mangled and name.startswith(mangled) else name
        begins = list(_begins(text, inner, indent))
        if not begins:
            return ""
        begin = begins[-1]  # the last of several: those before it are overloads
        text = text[begin : _end(text, begin)]
        indent, owner = _indent(text) + 4, name
    return text


def digest(entry: Entry, folder: Path) -> str:
    """A digest of the target's source in the package at `folder`, comments and blank lines left out.

    Empty if the target is not there.
    """
    text = source(entry, folder)
    if not text:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@lru_cache(maxsize=64)
def _read(path: Path, _written: int) -> str:
    return path.read_text()


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
        if line.strip() and line.lstrip()[0] not in "#)]}":
            return at
        at = text.find("\n", at) + 1
    return len(text)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))

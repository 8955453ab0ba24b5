"""Whether the installed torch, transformers and DeepSpeed are those that planner's table was written for."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.errors import TraceError
from planner.upstream import sources, table
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
        folder = sources.folder_of(package)
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
    there = sources.digest(entry, folder)
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

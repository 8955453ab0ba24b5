"""Versions as facts are grouped by them."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from functools import cache

TESTED = {"torch": "2.13", "transformers": "5.23"}
"""As constraints.txt pins them (tests/planning/plans/test_newer_software.py)."""


def minor_of(version: str) -> str:
    """Major and minor of a version, `2.13` of `2.13.0+cu130`; empty if it is none."""
    found = re.match(r"(\d+)\.(\d+)(?![0-9])", version)
    return f"{found[1]}.{found[2]}" if found else ""


def newer_than_tested(installed: Mapping[str, str]) -> dict[str, str]:
    """Of these versions, by package, major and minor of those that are newer than what planner is tested with."""
    found = {name: minor_of(installed.get(name, "")) for name in TESTED}
    return {name: minor for name, minor in found.items() if minor and _numbers(minor) > _numbers(TESTED[name])}


def _numbers(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


def installed_version(package: str) -> str:
    """That of a package which is installed here; empty where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def torch_at_hand() -> str:
    """Major and minor of the torch that is installed here; that which planner is tested with, where none is."""
    return minor_of(installed_version("torch")) or TESTED["torch"]


NEWEST_CUDA = "13.0"
_CUDA = {
    "2.1": "12.1", "2.2": "12.1", "2.3": "12.1", "2.4": "12.1", "2.5": "12.4", "2.6": "12.4", "2.7": "12.6",
    "2.8": "12.8", "2.9": "12.8", "2.10": "12.8",
}  # fmt: skip
"""Release notes of torch 2.1 to 2.11 (github.com/pytorch/pytorch/releases): from 2.11 on CUDA 13.0."""


def cuda_of(torch: str) -> str:
    """The CUDA of a release (`2.6`: `12.4`); of one that is not listed that of a spec that says nothing."""
    return _CUDA.get(torch, NEWEST_CUDA)

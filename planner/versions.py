"""Versions as facts are grouped by them."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache


def minor_of(version: str) -> str:
    """Major and minor of a version, `2.13` of `2.13.0+cu130`; empty if it is none."""
    found = re.match(r"(\d+)\.(\d+)(?![0-9])", version)
    return f"{found[1]}.{found[2]}" if found else ""


@cache
def torch_at_hand() -> str:
    """Major and minor of the torch that is installed here; 2.13, which planner is tested with, where none is."""
    try:
        return minor_of(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return "2.13"

"""Versions as facts are grouped by them."""

from __future__ import annotations

import re


def minor_of(version: str) -> str:
    """Major and minor of a version, `2.13` of `2.13.0+cu130`; empty if it is none."""
    found = re.match(r"(\d+)\.(\d+)(?![0-9])", version)
    return f"{found[1]}.{found[2]}" if found else ""

"""Finds the config.json of a model, or of an adapter, that a machine has downloaded from the hub already.

Folders and variables are those of huggingface_hub 1.0 (constants.py, file_download.py). Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}")


def find(name: str, file: str = "config.json", environment: Mapping[str, str] | None = None) -> Path | None:
    """The file of the revision `main`, or of the only other one; None if this machine does not have it."""
    if not _NAME.fullmatch(name) or ".." in name:
        return None
    folder = _root(os.environ if environment is None else environment) / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        revisions = [revision] if re.fullmatch(r"\w+", revision) else []
    except (OSError, ValueError):
        revisions = []
    try:
        revisions = revisions or sorted(each.name for each in (folder / "snapshots").iterdir())
    except OSError:
        return None
    found = folder / "snapshots" / revisions[0] / file if len(revisions) == 1 else None
    return found if found is not None and found.is_file() else None


def _root(environment: Mapping[str, str]) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(home).expanduser() / "hub"

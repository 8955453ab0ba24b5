"""Where planner keeps on disk, for this user, what it has made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = "PLANNER_CACHE"
NONE = "none"
"""In place of a folder: nothing is kept."""


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """planner's folder in the user's cache (XDG_CACHE_HOME)."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "planner"


def traces_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of traces: the one that PLANNER_CACHE names; None where that says `none`."""
    named = environment.get(_VARIABLE)
    if named == NONE:
        return None
    return Path(named) if named else user_cache(environment) / "traces"


def inductor_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of what Inductor compiled: below the one that PLANNER_CACHE names; None where that says `none`."""
    named = environment.get(_VARIABLE)
    if named == NONE:
        return None
    return (Path(named) if named else user_cache(environment)) / "inductor"

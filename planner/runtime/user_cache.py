"""Where planner keeps on disk, for this user, what it has made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """planner's folder in the user's cache (XDG_CACHE_HOME)."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "planner"

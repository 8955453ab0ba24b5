"""A user's cache of a test's own, which has the libraries that are built once, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.runtime.user_cache import user_cache


def use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on planner's cache lies below `folder`; where."""
    built = [path for kind in ("cuda", "paper") for path in user_cache().glob(f"{kind}-*")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    own = folder / "planner"
    own.mkdir(parents=True, exist_ok=True)
    for path in built:
        if not (own / path.name).exists():
            (own / path.name).symlink_to(path)
    return own

"""Collected only where planner is installed from its wheel, as `make test-wheel` does it, and not from this folder."""

from __future__ import annotations

from pathlib import Path

import planner

collect_ignore_glob = ["*.py"] if Path(planner.__file__).is_relative_to(Path(__file__).parents[3] / "planner") else []

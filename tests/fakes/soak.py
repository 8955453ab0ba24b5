"""How many of a test's many cases CI takes: `make soak` (PLANNER_SOAK=whole) takes all of them."""

from __future__ import annotations

import os

IS_WHOLE = os.environ.get("PLANNER_SOAK") == "whole"


def share(whole: int, in_ci: int) -> int:
    """All of the cases where they are asked for, else as many as CI has time for."""
    return whole if IS_WHOLE else in_ci

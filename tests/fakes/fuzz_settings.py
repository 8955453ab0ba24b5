"""How many examples the tests of tests/service/fuzz take."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

ASKED = os.environ.get("PLANNER_FUZZ_EXAMPLES", "")
EXAMPLES = int(ASKED or "5000")
"""In all tests together; `make fuzz` asks for many more."""


def share(part: float) -> settings:
    """The settings of a test that takes this part of all examples: the same ones each time, unless their number was
    asked for."""
    return settings(
        max_examples=max(1, round(EXAMPLES * part)),
        deadline=None,
        derandomize=not ASKED,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

"""planner says before a PyTorch training job starts what GPU memory every rank will take, and whether it fits.

From Python: `planner.plan`, `.check`, `.compare`, `.search`, `.max` and `.sweep` (planner/api). They are loaded when
they are asked for, and importing planner loads neither torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import (
        Check,
        Comparisons,
        JobWords,
        Largest,
        Plan,
        Search,
        Sweep,
        check,
        compare,
        max,
        plan,
        search,
        sweep,
    )

__all__ = [
    "Check", "Comparisons", "JobWords", "Largest", "Plan", "Search", "Sweep", "check", "compare", "max", "plan",
    "search", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    from planner import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

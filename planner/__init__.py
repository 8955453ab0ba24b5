"""planner says before a PyTorch training job starts what GPU memory every rank will take, and whether it fits.

From Python: `planner.plan`, `.check`, `.compare`, `.search`, `.max` and `.sweep` (planner/api); in a training job
`planner.report_memory`, `.trainer_callback` and `.lightning_callback`. They are loaded when they are asked for, and
importing planner loads neither torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import (
        Check,
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
    from planner.truth.measuring.memory_report import lightning_callback, report_memory, trainer_callback

_CALLBACKS = ("lightning_callback", "report_memory", "trainer_callback")
__all__ = [
    "Check", "JobWords", "Largest", "Plan", "Search", "Sweep", "check", "compare", "lightning_callback",
    "max", "plan", "report_memory", "search", "sweep", "trainer_callback",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    if name in _CALLBACKS:
        from planner.truth.measuring import memory_report

        return getattr(memory_report, name)
    from planner import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

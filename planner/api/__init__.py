"""planner from Python: what the commands answer, as objects for scripts and notebooks.

It never loads PyTorch into the caller's process: a child of its own traces, so that a notebook may train beside it. It
is called by people, through `planner.plan`, `planner.check`, `planner.search`, `planner.max` and so on.
"""

from planner.api.given import JobWords
from planner.api.planning import Check, Plan, check, compare, plan
from planner.api.searching import Largest, Search, Sweep, search, sweep
from planner.api.searching import largest as max  # as the command is called

__all__ = [
    "Check", "JobWords", "Largest", "Plan", "Search", "Sweep", "check", "compare", "max", "plan",
    "search", "sweep",
]  # fmt: skip

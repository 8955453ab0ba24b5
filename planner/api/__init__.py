"""planner from Python: what the commands answer, as objects for scripts and notebooks.

It never loads PyTorch into the caller's process: a child of its own traces, so that a notebook may train beside it. It
is called by people, through `planner.plan`, `planner.check` and `planner.compare`.
"""

from planner.api.comparing import Comparisons, compare
from planner.api.given import JobWords
from planner.api.planning import Check, Plan, check, plan

__all__ = ["Check", "Comparisons", "JobWords", "Plan", "check", "compare", "plan"]

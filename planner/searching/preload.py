"""Imports what plans of a search need, in a process that then forks for each of them."""

from __future__ import annotations

PRELOAD = "planner.searching.preload:load"


def load() -> None:
    """As for any plan, and the search itself."""
    from planner.planning import child_processes
    from planner.searching import answer  # noqa: F401

    child_processes.load()

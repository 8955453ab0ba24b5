"""A child process's task and its answer, as values."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.runtime.channel import AnswerWriter

PROBLEM, MEMORY, FAULT = "problem", "memory", "fault"
"""Parts that the child writes where the function does not return: what is wrong with its input (a PlannerError), that
memory ran out, or the traceback of anything else."""

Function = Callable[[Any, AnswerWriter], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A function of planner, by name, and its argument, which is pickled on its way to the child."""

    function: str
    """`module:name`; called with the argument and an :class:`AnswerWriter`."""
    argument: Any = None

    def resolve(self) -> Function:
        """The function itself; imports its module."""
        module, _, name = self.function.partition(":")
        found: Function = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a child left. Nothing in it is believed: code of users may have written it."""

    parts: Mapping[str, bytes] = field(default_factory=dict)
    """By name; of parts with one name, the last."""
    whole: bool = True
    """False: the bytes were cut off, or no answer at all."""
    exit_code: int = 0
    """As `subprocess` has it: negative for a signal."""
    last_line: str = ""
    """Of its standard error."""
    exceeded: Exception | None = None
    """The :class:`planner.runtime.limits.LimitExceededError` for which it was ended, or that its callers stopped it."""

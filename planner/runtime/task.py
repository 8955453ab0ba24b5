"""A child process's task and its answer, as values."""

from __future__ import annotations

import fcntl
import importlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def request_of(task: Task) -> Iterator[int]:
    """A file in memory with the task, to be a child's standard input; no file of the host, which code of users could
    write into."""
    descriptor = os.memfd_create("task", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            pickle.dump(task, file)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def take_request() -> Task:
    """The child's side: the task on standard input, of which nothing is left there, to be read or written."""
    with os.fdopen(os.dup(0), "rb") as file:
        task: Task = pickle.load(file)
    os.ftruncate(0, 0)
    fcntl.fcntl(0, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a child left. Nothing in it is believed: code of users may have written it."""

    parts: Mapping[str, bytes] = field(default_factory=dict)
    """By name; of parts with one name, the last."""
    whole: bool = True
    """False: the bytes were cut off, or no answer at all."""
    is_repeated: bool = False
    """Whether several parts have one name."""
    is_foreign: bool = False
    """Whether code of users ran there: it says what is wrong with a job, and nothing of a service or a request."""
    exit_code: int = 0
    """As `subprocess` has it: negative for a signal."""
    last_line: str = ""
    """Of its standard error."""
    exceeded: Exception | None = None
    """The :class:`planner.runtime.limits.LimitExceededError` for which it was ended, or that its callers stopped it."""

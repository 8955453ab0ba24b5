"""What a parent and its child tell each other: a task, an answer of named parts over a pipe, a failure."""

from __future__ import annotations

import fcntl
import importlib
import inspect
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from planner.errors import PlannerError, restored
from planner.runtime.limits import Limit, LimitExceededError, Limits

_NAME_BYTES = 1
_CONTENT_BYTES = 8
_HEAD_BYTES = _NAME_BYTES + _CONTENT_BYTES


class BrokenAnswerError(Exception):
    """The bytes are no answer: cut off, or written by something else than :class:`AnswerWriter`."""


class AnswerWriter:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def write(self, name: str, content: bytes) -> None:
        """Send one part, whole. Names are ASCII and at most 255 characters."""
        encoded = name.encode("ascii")
        head = len(encoded).to_bytes(_NAME_BYTES, "big") + len(content).to_bytes(_CONTENT_BYTES, "big")
        for piece in (head + encoded, content):
            view = memoryview(piece)
            while view:
                view = view[os.write(self.descriptor, view) :]


def read_parts(answer: bytes) -> Iterator[tuple[str, bytes]]:
    """The parts of an answer, in order. Raises BrokenAnswerError at the first byte that belongs to none."""
    at = 0
    while at < len(answer):
        name_bytes = answer[at]
        content_bytes = int.from_bytes(answer[at + _NAME_BYTES : at + _HEAD_BYTES], "big")
        end = at + _HEAD_BYTES + name_bytes + content_bytes
        name = answer[at + _HEAD_BYTES : at + _HEAD_BYTES + name_bytes]
        if at + _HEAD_BYTES > len(answer) or end > len(answer) or not name.isascii():
            raise BrokenAnswerError(f"byte {at} of {len(answer)} begins no part")
        yield name.decode("ascii"), answer[at + _HEAD_BYTES + name_bytes : end]
        at = end


PROBLEM, MEMORY, FAULT = "problem", "memory", "fault"
"""Parts that the child writes where the function does not return: what is wrong with its input (a PlannerError), that
memory ran out, or the traceback of anything else."""
TASKS = "tasks"
"""A part that says that the kernel refused another thread when the function was over."""

Function = Callable[[Any, AnswerWriter], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A function of planner, by name, and its argument, which is pickled on its way to the child."""

    function: str
    """`module:name`; called with the argument and an :class:`AnswerWriter`."""
    argument: Any = None
    scratch: str = ""
    """A folder for the child's temporary ones; the caller removes it when the child has ended."""

    def resolve(self) -> Function:
        """The function itself; imports its module."""
        module, _, name = self.function.partition(":")
        function: Function = getattr(importlib.import_module(module), name)
        return function


@contextmanager
def task_file(task: Task) -> Iterator[int]:
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
    is_foreign: bool = False
    """Whether code of users ran there: it says what is wrong with a job, and nothing of a service or a request."""
    exit_code: int = 0
    """As `subprocess` has it: negative for a signal."""
    last_lines: tuple[str, ...] = ()
    """Of its standard error."""
    exceeded: Exception | None = None
    """The :class:`planner.runtime.limits.LimitExceededError` for which it was ended, or that its callers stopped it."""


_FIELDS = frozenset(("problem", "allowed", "remedy", "place"))
_OF_JOBS = PlannerError.__module__
_MOST_CHARACTERS = 8000
_MOST_FAULT_CHARACTERS = 500
_MOST_PROBLEM_BYTES = 1 << 20


def error_of(answer: Answer) -> PlannerError | None:
    """The error that the child's function raised, with its class and fields; None if it reports none that can be read.

    Of a class that this process has not loaded, and that nobody in it can wait for, it is one of the nearest class from
    which that is derived.
    """
    text = answer.parts.get(PROBLEM, b"")
    if not text or len(text) > _MOST_PROBLEM_BYTES:
        return None
    try:
        document = json.loads(text)
        fields = {
            str(name): value[:_MOST_CHARACTERS] if isinstance(value, str) else value
            for name, value in document["fields"].items()
        }
        own = str(document["kinds"][0])
        known, kind = next(
            (name, kind)
            for name in document["kinds"]
            if (kind := _loaded(name)) is not None and not (answer.is_foreign and kind.__module__ != _OF_JOBS)
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration, RecursionError):
        return None
    if not all(isinstance(fields.get(name), str) for name in _FIELDS):
        return None
    if known != own:
        return restored(kind, {name: fields[name] for name in _FIELDS})
    # Errors of a class have what they are made with, each by its name.
    parameters = inspect.signature(kind).parameters.values()
    made_with = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    return restored(kind, fields) if fields.keys() == _FIELDS | made_with else None


def _loaded(name: str) -> type[PlannerError] | None:
    """The class `module:name`, where its module is loaded: nothing is imported because a child says so."""
    module, _, name = name.partition(":")
    kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return kind if isinstance(kind, type) and issubclass(kind, PlannerError) else None


def exceeded_limit(answer: Answer, limits: Limits) -> LimitExceededError | None:
    """The limit for which a child was ended, or that it reached by itself; None if there is none."""
    if isinstance(answer.exceeded, LimitExceededError):
        return answer.exceeded
    if MEMORY in answer.parts:
        return LimitExceededError(Limit.MEMORY, limits, limits.memory_bytes)
    if TASKS in answer.parts and answer.is_foreign:  # elsewhere the kernel's limit is that of the user
        return LimitExceededError(Limit.TASKS, limits, limits.tasks)
    return None


def raise_failure(answer: Answer) -> None:
    """Raise what the child's function raised: a PlannerError as itself, anything else as RuntimeError."""
    error = error_of(answer)
    if error is not None:
        raise error
    if FAULT in answer.parts:
        raise RuntimeError(answer.parts[FAULT].decode(errors="replace"))


def is_fault(answer: Answer) -> bool:
    """Whether the child's function raised something else than a PlannerError."""
    return FAULT in answer.parts and error_of(answer) is None


def fault_line(answer: Answer) -> str | None:
    """The last line of the traceback of a fault in the child's function; None if it reports none."""
    if FAULT not in answer.parts:
        return None
    lines = answer.parts[FAULT].decode(errors="replace").strip().splitlines() or ["without a word"]
    return lines[-1][:_MOST_FAULT_CHARACTERS]


def ending(answer: Answer) -> str:
    """How the process ended, for people: `exit code 0: its last words`."""
    code = answer.exit_code
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {answer.last_lines[-1] if answer.last_lines else 'without a word'}"

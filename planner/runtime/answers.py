"""Describes a child's failure: the error that it reported, or how it ended without a word."""

from __future__ import annotations

import inspect
import json
import signal
import sys
from collections.abc import Mapping
from typing import Any

from planner.errors import PlannerError, restored
from planner.runtime.task import FAULT, PROBLEM, Answer

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
        fields = {str(name): _cut(value) for name, value in document["fields"].items()}
        own = str(document["kinds"][0])
        known, kind = next(
            (each, kind)
            for each in document["kinds"]
            if (kind := _loaded(each)) is not None and not (answer.is_foreign and kind.__module__ != _OF_JOBS)
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration, RecursionError):
        return None
    if not all(isinstance(fields.get(name), str) for name in _FIELDS):
        return None
    if known != own:
        fields = {name: fields[name] for name in _FIELDS}
    elif not _has_fields(kind, fields):
        return None
    return restored(kind, fields)


def _loaded(name: str) -> type[PlannerError] | None:
    """The class `module:name`, where its module is loaded: nothing is imported because a child says so."""
    module, _, name = name.partition(":")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return found if isinstance(found, type) and issubclass(found, PlannerError) else None


def _has_fields(kind: type[PlannerError], fields: Mapping[str, Any]) -> bool:
    """Whether errors of this class have these fields: what they are made with, each by its name."""
    made_with = inspect.signature(kind).parameters.values()
    return fields.keys() == _FIELDS | {each.name for each in made_with if each.kind is not each.VAR_KEYWORD}


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
    return f"{how}: {answer.last_line or 'without a word'}"


def _cut(value: Any) -> Any:
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else value

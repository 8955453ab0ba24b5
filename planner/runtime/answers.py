"""Describes a child's failure: the error that it reported, or how it ended without a word."""

from __future__ import annotations

import json
import signal

from planner import errors
from planner.errors import PlannerError
from planner.runtime.task import FAULT, PROBLEM, Answer

_FIELDS = ("problem", "allowed", "remedy", "place")
_MOST_CHARACTERS = 8000
_MOST_FAULT_CHARACTERS = 500
_MOST_PROBLEM_BYTES = 1 << 20
_KINDS = {each.__name__: each for each in vars(errors).values() if isinstance(each, type)}


def error_of(answer: Answer) -> PlannerError | None:
    """The error that the child's function raised; None if it reports none that can be read."""
    text = answer.parts.get(PROBLEM, b"")
    if not text or len(text) > _MOST_PROBLEM_BYTES:
        return None
    try:
        document = json.loads(text)
        said = {name: _text(document[name]) for name in _FIELDS}
        kind = _KINDS.get(_text(document["kind"]), PlannerError)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return kind(said.pop("problem"), **said) if issubclass(kind, PlannerError) else None


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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value[:_MOST_CHARACTERS]

"""One child process that measures, watched: its time, its memory, its end. Whatever it does is an answer."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.measuring import measurement
from planner.tracing import child_process
from planner.tracing.isolated import Limits
from planner.units import show_bytes

_ROOT = Path(__file__).parents[2]
_CHILD = "import sys; sys.path.append(sys.argv[1]); from planner.validation import child; child.answer_request()"
"""Started with -P and planner last in the path: no file where it is started stands for a library."""
_SAID = ("problem", "allowed", "remedy", "place")
_MOST_CHARACTERS = 2000
_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def run(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The child's answer: `{"measurement": ...}`, or `{"problem": ..., ...}` whatever went wrong.

    To be called from a thread that lives as long as the child: the kernel ends the child with it.
    """
    told = {**request, "seconds": limits.seconds, "parent": os.getpid()}
    try:
        ended = child_process.run(
            [sys.executable, "-P", "-c", _CHILD, str(_ROOT)],
            told,
            _watch(limits),
            _environment(str(request["job"].get("allocator", {}).get("conf", ""))),
        )
    except _TooMuchError as trouble:
        return {"problem": str(trouble)}
    try:
        return _read(ended.answer, request)
    except (ValueError, TypeError, KeyError, AttributeError, PlannerError):
        # It ended before it had answered; or a foreign program has answered in its place.
        return {"problem": _ended(ended.code, ended.last_line)}


class _TooMuchError(Exception):
    """Time or memory, said as the answer."""


def _read(text: bytes, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, if it is one to this request. Raises one of many errors if it is not."""
    answer = json.loads(text)
    if isinstance(answer.get("problem"), str):
        return {name: str(answer.get(name, ""))[:_MOST_CHARACTERS] for name in _SAID} | {
            "of_a_peer": answer.get("of_a_peer") is True
        }
    found = measurement.from_json(answer["measurement"])
    if (found.rank, found.world_size) != (request["rank"], request["world_size"]) or found.error:
        raise ValueError("the measurement of another rank")
    return {"measurement": measurement.to_json(found)}


def _environment(conf: str) -> dict[str, str]:
    """This process's own, with the allocator's settings of the job and of nobody else."""
    kept = {name: value for name, value in os.environ.items() if name not in _CONFS}
    quiet = {"KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
    # torch before 2.10 reads the old name only, and later ones read both.
    return {**kept, **quiet, **(dict.fromkeys(_CONFS, conf) if conf else {})}


def _watch(limits: Limits) -> Callable[[int], None]:
    deadline = time.monotonic() + limits.seconds

    def watch(child: int) -> None:
        if time.monotonic() > deadline:
            raise _TooMuchError(f"the measured step was not done within {limits.seconds:g} s, and was ended")
        if child_process.resident_bytes(child) > limits.memory_bytes:
            raise _TooMuchError(
                f"the measured step took more than {show_bytes(limits.memory_bytes)} of the host's memory, and was "
                "ended (PLANNER_VALIDATION_MEMORY_BYTES)"
            )

    return watch


def _ended(code: int, last_line: str) -> str:
    if code == -signal.SIGKILL:
        return "the measuring process was killed (SIGKILL), as the kernel does where a host's memory runs out"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the measuring process ended with {how}: {last_line or 'without a word'}"

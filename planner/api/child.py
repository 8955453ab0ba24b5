"""The process in which the Python API has its work done: PyTorch is loaded there once, and not where people work."""

from __future__ import annotations

import atexit
import pickle
from functools import cache
from typing import Any

from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import AnswerWriter, Task
from planner.searching.exact_processes import PRELOAD

_RESULT = "result"


def call(function: str, *arguments: Any) -> Any:
    """What `module:function` returns in a child process, which has PyTorch loaded; both ways it is pickled.

    Raises what the function raises: a PlannerError as itself, anything else as RuntimeError.
    """
    answer = running.run(Task("planner.api.child:answer", (function, arguments)), UNLIMITED, server=server())
    messages.raise_failure(answer)
    if _RESULT not in answer.parts:
        raise RuntimeError(f"the planning process ended without an answer: {messages.ending(answer)}")
    return pickle.loads(answer.parts[_RESULT])


def answer(argument: tuple[str, tuple[Any, ...]], writer: AnswerWriter) -> None:
    """The child's side."""
    function, arguments = argument
    found: Any = Task(function).resolve()
    writer.write(_RESULT, pickle.dumps(found(*arguments), pickle.HIGHEST_PROTOCOL))


@cache
def server() -> ForkServer:
    """With PyTorch loaded; started by the first who needs it."""
    found = ForkServer(PRELOAD)
    atexit.register(found.close)
    return found

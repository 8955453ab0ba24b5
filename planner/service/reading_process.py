"""Reads slow bodies in a process of their own, so that the event loop goes on and the reading can be ended."""

from __future__ import annotations

import asyncio
import atexit
import functools
import pickle
from typing import Any

from planner.runtime import answers, running
from planner.runtime.channel import AnswerWriter
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limits
from planner.runtime.task import Answer, Task
from planner.service.problems import RequestError
from planner.units import GIB

LIMITS = Limits(seconds=10.0, memory_bytes=2 * GIB, tasks=16)
"""For one body. What is allowed in a body is read within a second on a machine that is not busy."""
_RESULT = "result"
_REMEDY = "send a bundle, as planner spec --bundle prints it"


async def read_beside(function: str, body: bytes, kind: str, remedy: str = _REMEDY) -> Any:
    """What `function(body, kind)` returns, called in a process of its own; `function` is `module:name`.

    Raises what it raises: PlannerError, RequestError; RequestError (422) for a body that takes too long to read, with
    what its sender may change.
    """
    stopped = False
    task = Task("planner.service.reading_process:answer_reading", (function, body, kind))
    work = asyncio.ensure_future(
        asyncio.to_thread(running.run, task, LIMITS, server=_server(), stopped=lambda: stopped)
    )
    try:
        return _result(await asyncio.shield(work), remedy)
    except asyncio.CancelledError:
        stopped = True
        raise


def answer_reading(argument: tuple[str, bytes, str], answer: AnswerWriter) -> None:
    """The child's side."""
    function, body, kind = argument
    result = Task(function).resolve()(body, kind)  # type: ignore[arg-type]  # a reader, with its own arguments
    answer.write(_RESULT, pickle.dumps(result))


def load() -> None:
    """What the server has loaded before it forks."""
    from planner.job import loading
    from planner.service import body_contents, plan_timelines, snapshot_requests, spec_requests

    assert body_contents, loading
    assert plan_timelines, spec_requests
    assert snapshot_requests


@functools.cache
def _server() -> ForkServer:
    server = ForkServer("planner.service.reading_process:load")
    atexit.register(server.close)
    return server


def _result(answer: Answer, remedy: str) -> Any:
    if answer.exceeded is not None:
        raise RequestError(
            422,
            f"the body cannot be read within {LIMITS.seconds:g} s",
            remedy=remedy,
            place="the body",
        )
    answers.raise_failure(answer)
    if _RESULT not in answer.parts:
        raise RuntimeError(f"a body was not read: {answers.ending(answer)}")
    return pickle.loads(answer.parts[_RESULT])

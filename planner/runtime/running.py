"""Runs a task in a child: starts it, watches its time, memory and tasks until it ends, returns its answer."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from planner.runtime import process_tree
from planner.runtime.child import MAIN, interpreter_words
from planner.runtime.control_group import ControlGroup
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED, Limit, LimitExceededError, Limits
from planner.runtime.messages import (
    Answer,
    AnswerWriter,
    BrokenAnswerError,
    Task,
    ending,
    raise_failure,
    read_parts,
    task_file,
)
from planner.runtime.walls import Walls

_RESULT = "result"
_LOOK_SECONDS = 0.02
"""A process that writes fresh pages as fast as it can takes some tens of MiB between two looks."""
_ASK_SECONDS = 0.1
"""A control group is asked so often: the kernel itself holds its limits."""
_SELDOM = 4
"""A look at each page is not repeated for so many times as long as it took."""
_READ_BYTES = 1 << 16
_MOST_ERROR_BYTES = 1 << 16
_MOST_LINE_CHARACTERS = 300
MOST_LAST_LINES = 20
_DRAIN_SECONDS = 5.0
USUAL_LIMITS = Limits()
Heard = Callable[[bytes], None]


class StoppedError(Exception):
    """Nobody wants the answer any more; the child was killed."""


def call(
    function: str,
    *arguments: Any,
    limits: Limits = UNLIMITED,
    server: ForkServer | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """What `module:function`, which is planner's own, returns in a child process; both ways it is pickled.

    Raises what the function raises, a PlannerError as itself and anything else as RuntimeError; LimitExceededError and
    StoppedError for a child that was ended, RuntimeError for one that has ended without an answer.
    """
    answer = run(Task(f"{__name__}:answer_call", (function, arguments)), limits, server=server, stopped=stopped)
    if answer.exceeded is not None:
        raise answer.exceeded
    raise_failure(answer)
    if _RESULT not in answer.parts:
        raise RuntimeError(f"{function} ended its process without an answer: {ending(answer)}")
    return pickle.loads(answer.parts[_RESULT])


def answer_call(argument: tuple[str, tuple[Any, ...]], answer: AnswerWriter) -> None:
    """The child's side of :func:`call`."""
    function, arguments = argument
    result: Any = Task(function).resolve()
    answer.write(_RESULT, pickle.dumps(result(*arguments), pickle.HIGHEST_PROTOCOL))


def run(
    task: Task,
    limits: Limits = USUAL_LIMITS,
    *,
    server: ForkServer | None = None,
    walls: Walls | None = None,
    environment: Mapping[str, str] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    heard: Heard = lambda _: None,
) -> Answer:
    """Run the task in a child process and wait for its end. To be called from a thread that stays until then.

    With a `server` the child is forked by it; else it is a fresh interpreter, behind `walls` if they are given, with
    this `environment` (default: this process's own; behind walls it is added to theirs). One that exceeds a limit, or
    that is `stopped`, is killed with all that it started. `heard` gets what it prints or writes to its
    standard error, as it comes. Raises WallsError where walls are wanted and cannot be had,
    ServerLostError if there is no server to be had.
    """
    with contextlib.ExitStack() as stack:
        if walls is None:  # behind them it has temporary files of its own
            with contextlib.suppress(OSError):  # on a system where nothing can be written
                folder = tempfile.TemporaryDirectory(prefix="planner-child-", ignore_cleanup_errors=True)
                task = replace(task, scratch=stack.enter_context(folder))
        process, group = _start(task, limits, server, walls, environment)
        return replace(_supervise(process, limits, group, stopped, heard), is_foreign=walls is not None)


def _start(
    task: Task, limits: Limits, server: ForkServer | None, walls: Walls | None, environment: Mapping[str, str] | None
) -> tuple[Process, ControlGroup | None]:
    """The child, and the group that the kernel holds memory and tasks of, where there is one."""
    group = ControlGroup.create(limits)
    enter = group.enter() if group is not None else ()
    try:
        process: Process
        if walls is not None:
            with walls.prepare_start(limits) as prepared:
                variables = {**prepared.environment, **(environment or {})}
                process = _SpawnedProcess(task, variables, enter, prepared.command, prepared.descriptors)
        else:
            process = server.fork(task) if server is not None else _SpawnedProcess(task, environment, enter)
    except BaseException:
        if group is not None:
            group.kill()
        raise
    if group is not None and not group.add(process.pid):
        group.kill()
        group = None
    return process, group


class Process(Protocol):
    """A child that was started, however that was done."""

    pid: int
    answer: int
    """The reading end of the pipe that its answer comes through."""
    errors: int
    """The reading end of its standard error."""

    def poll(self) -> int | None:
        """The exit code once it has ended, as `subprocess` has it."""

    def close(self) -> None:
        """Forget the process, which has ended, and close what is open for it."""


class _SpawnedProcess:
    """An interpreter that runs the task, in a session of its own; it ends with this thread.

    `enter` and `walls` are put before its command line. Walls see to its end, for its parent is theirs.
    """

    def __init__(
        self,
        task: Task,
        environment: Mapping[str, str] | None,
        enter: Sequence[str] = (),
        walls: Sequence[str] = (),
        descriptors: Sequence[int] = (),
    ) -> None:
        parent = 0 if walls else os.getpid()
        with task_file(task) as request:
            self._child = child = subprocess.Popen(
                [*enter, *walls, *interpreter_words(MAIN, str(parent))],
                stdin=request,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=None if environment is None else dict(environment),
                pass_fds=tuple(descriptors),
                bufsize=0,
            )
        assert child.stdout is not None
        assert child.stderr is not None
        self.pid, self.answer, self.errors = child.pid, child.stdout.fileno(), child.stderr.fileno()

    def poll(self) -> int | None:
        return self._child.poll()

    def close(self) -> None:
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()


class _Output:
    def __init__(self, process: Process, limits: Limits, heard: Heard) -> None:
        self._process, self._limits, self._heard = process, limits, heard
        self.answer, self._errors = bytearray(), bytearray()

    def take(self, descriptor: int) -> bool:
        """Read what is there; False at the end of the pipe. Raises LimitExceededError for too large an answer."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        if descriptor == self._process.answer:
            self.answer += chunk
            if len(self.answer) > self._limits.answer_bytes:
                raise LimitExceededError(Limit.ANSWER, self._limits, len(self.answer))
        else:
            self._errors = (self._errors + chunk)[-_MOST_ERROR_BYTES:]
            self._heard(chunk)
        return bool(chunk)

    def drain(self) -> None:
        """Read what is still in the pipes; all other writers have been killed."""
        until = time.monotonic() + _DRAIN_SECONDS
        for descriptor in (self._process.answer, self._process.errors):
            os.set_blocking(descriptor, True)
            with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
                selector.register(descriptor, selectors.EVENT_READ)
                while time.monotonic() < until and selector.select(_DRAIN_SECONDS) and self.take(descriptor):
                    pass

    def last_lines(self) -> tuple[str, ...]:
        lines = self._errors.decode(errors="replace").strip().splitlines()[-MOST_LAST_LINES:]
        return tuple(line[:_MOST_LINE_CHARACTERS] for line in lines)


def _supervise(
    process: Process, limits: Limits, group: ControlGroup | None, stopped: Callable[[], bool], heard: Heard
) -> Answer:
    output = _Output(process, limits, heard)
    exceeded: Exception | None = None
    try:
        _watch(process, limits, output, group, stopped)
    except (LimitExceededError, StoppedError) as end:
        exceeded = end
    finally:
        if group is not None and exceeded is None and (limit := group.exceeded()) is not None:
            exceeded = _exceeded(limit, limits)
        process_tree.kill(process.pid)  # first: what a child started before it was in the group is in its tree only
        if group is not None:
            group.kill()
    while (code := process.poll()) is None:
        time.sleep(_LOOK_SECONDS / 4)
    if exceeded is None:
        try:
            output.drain()
        except LimitExceededError as end:
            exceeded = end
    process.close()
    parts: dict[str, bytes] = {}
    whole = True
    try:
        parts.update(read_parts(bytes(output.answer)))
    except BrokenAnswerError:
        whole = False
    return Answer(parts=parts, whole=whole, exit_code=code, last_lines=output.last_lines(), exceeded=exceeded)


def _watch(
    process: Process, limits: Limits, output: _Output, group: ControlGroup | None, stopped: Callable[[], bool]
) -> None:
    deadline, looked = time.monotonic() + limits.seconds, 0.0
    look_seconds = _LOOK_SECONDS if group is None else _ASK_SECONDS
    with selectors.DefaultSelector() as selector:
        for descriptor in (process.answer, process.errors):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while process.poll() is None:
            if not selector.get_map():  # both pipes are closed: there is nothing to wait for but its end
                time.sleep(_LOOK_SECONDS / 10)
            for key, _ in selector.select(look_seconds) if selector.get_map() else ():
                if not output.take(key.fd):
                    selector.unregister(key.fd)
            now = time.monotonic()
            if stopped():
                raise StoppedError
            if now > deadline:
                raise LimitExceededError(Limit.SECONDS, limits, limits.seconds)
            if limits == UNLIMITED or now - looked < look_seconds:
                continue
            looked = now
            if group is not None:
                if (limit := group.exceeded()) is not None:
                    raise _exceeded(limit, limits)
            else:
                used = process_tree.usage(process.pid)
                if used.tasks > limits.tasks:
                    raise LimitExceededError(Limit.TASKS, limits, used.tasks)
                if used.other_bytes <= limits.memory_bytes < used.memory_bytes:
                    used = process_tree.usage(process.pid, proportional=True)
                    looked += _SELDOM * (time.monotonic() - now)
                if used.memory_bytes > limits.memory_bytes:
                    raise LimitExceededError(Limit.MEMORY, limits, used.memory_bytes)


def _exceeded(limit: Limit, limits: Limits) -> LimitExceededError:
    """The error of a limit that the kernel did not let it exceed."""
    return LimitExceededError(limit, limits, limits.tasks if limit is Limit.TASKS else limits.memory_bytes)

"""Runs a task in a child: starts it, watches its time, memory and tasks until it ends, returns its answer."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from planner.runtime import process_tree
from planner.runtime.child import interpreter_words
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED, Limit, LimitExceededError, Limits
from planner.runtime.messages import Answer, BrokenAnswerError, Task, parts_of, request_of
from planner.runtime.process_tree import Cgroup
from planner.runtime.walls import Walls

_CHILD = "from planner.runtime import child; child.main()"


class SpawnedProcess:
    """A child started by :func:`spawn`."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self.pid = child.pid
        self.answer, self.errors = child.stdout.fileno(), child.stderr.fileno()

    def poll(self) -> int | None:
        """The exit code once it has ended."""
        return self._child.poll()

    def close(self) -> None:
        """Close its pipes."""
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()


def spawn(
    task: Task,
    *,
    front: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> SpawnedProcess:
    """Start an interpreter that runs the task, in a session of its own; it ends with this thread.

    `front` is put before its command line: walls. Then the walls see to its end, for its parent is theirs.
    """
    parent = 0 if front else os.getpid()
    command = [*front, *interpreter_words(_CHILD, str(parent))]
    with request_of(task) as request:
        child = subprocess.Popen(
            command,
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=None if environment is None else dict(environment),
            pass_fds=tuple(descriptors),
            bufsize=0,
        )
    return SpawnedProcess(child)


_LOOK_SECONDS = 0.02
"""A process that writes fresh pages as fast as it can takes some tens of MiB between two looks."""
_READ_BYTES = 1 << 16
_MOST_ERROR_BYTES = 1 << 16
_MOST_LINE_CHARACTERS = 300
_DRAIN_SECONDS = 5.0


class StoppedError(Exception):
    """Nobody wants the answer any more; the child was killed."""


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


@dataclass(slots=True)
class _Output:
    """What the child has written so far."""

    limits: Limits
    answer: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)

    def take(self, process: Process, descriptor: int) -> bool:
        """Read what is there; False at the end of the pipe. Raises LimitExceededError for too large an answer."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        if descriptor == process.answer:
            self.answer += chunk
            if len(self.answer) > self.limits.answer_bytes:
                raise LimitExceededError(Limit.ANSWER, self.limits, len(self.answer))
        else:
            self.errors = (self.errors + chunk)[-_MOST_ERROR_BYTES:]
        return bool(chunk)

    def last_line(self) -> str:
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1][:_MOST_LINE_CHARACTERS] if lines else ""


def supervise(
    process: Process, limits: Limits, *, group: Cgroup | None = None, stopped: Callable[[], bool] = lambda: False
) -> Answer:
    """Wait for the child's end and return what it left; one that exceeds a limit is killed with all that it started.

    `group` is the control group that it was put in, where there is one: the kernel then holds memory and tasks.
    """
    output = _Output(limits)
    exceeded: Exception | None = None
    try:
        _watch(process, limits, output, group, stopped)
    except (LimitExceededError, StoppedError) as end:
        exceeded = end
    finally:
        if group is not None:
            exceeded = exceeded or _held_by_kernel(group, limits)
            group.kill()
        process_tree.kill(process.pid)
    code = _wait(process)
    exceeded = exceeded or _drain(process, output)
    process.close()
    return _answer(output, code, exceeded)


def _held_by_kernel(group: Cgroup, limits: Limits) -> LimitExceededError | None:
    return LimitExceededError(Limit.MEMORY, limits, limits.memory_bytes) if group.ran_out_of_memory() else None


def _watch(
    process: Process, limits: Limits, output: _Output, group: Cgroup | None, stopped: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + limits.seconds
    with selectors.DefaultSelector() as selector:
        for descriptor in (process.answer, process.errors):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        looked = 0.0
        while process.poll() is None:
            for key, _ in selector.select(_LOOK_SECONDS) if selector.get_map() else _pause():
                if not output.take(process, key.fd):
                    selector.unregister(key.fd)
            now = time.monotonic()
            if stopped():
                raise StoppedError
            if now > deadline:
                raise LimitExceededError(Limit.SECONDS, limits, limits.seconds)
            if group is None and limits != UNLIMITED and now - looked >= _LOOK_SECONDS:
                looked = now
                _check_usage(process.pid, limits)


def _pause() -> list[tuple[selectors.SelectorKey, int]]:
    """Both pipes are closed and the process still runs: there is nothing to wait for but its end."""
    time.sleep(_LOOK_SECONDS / 10)
    return []


def _check_usage(pid: int, limits: Limits) -> None:
    used = process_tree.usage(pid)
    if used.tasks > limits.tasks:
        raise LimitExceededError(Limit.TASKS, limits, used.tasks)
    if used.memory_bytes > limits.memory_bytes:
        raise LimitExceededError(Limit.MEMORY, limits, used.memory_bytes)


def _wait(process: Process) -> int:
    while (code := process.poll()) is None:
        time.sleep(_LOOK_SECONDS / 4)
    return code


def _drain(process: Process, output: _Output) -> LimitExceededError | None:
    """Read what is still in the pipes; whoever else could write there has been killed."""
    until = time.monotonic() + _DRAIN_SECONDS
    for descriptor in (process.answer, process.errors):
        os.set_blocking(descriptor, True)
        with contextlib.suppress(OSError):
            try:
                while time.monotonic() < until and _readable(descriptor) and output.take(process, descriptor):
                    pass
            except LimitExceededError as exceeded:
                return exceeded
    return None


def _readable(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(_DRAIN_SECONDS))


def _answer(output: _Output, code: int, exceeded: Exception | None) -> Answer:
    parts: dict[str, bytes] = {}
    whole, is_repeated = True, False
    try:
        for name, content in parts_of(bytes(output.answer)):
            is_repeated |= name in parts
            parts[name] = content
    except BrokenAnswerError:
        whole = False
    return Answer(
        parts=parts, whole=whole, is_repeated=is_repeated, exit_code=code, last_line=output.last_line(),
        exceeded=exceeded,
    )  # fmt: skip


USUAL_LIMITS = Limits()


def run(
    task: Task,
    limits: Limits = USUAL_LIMITS,
    *,
    server: ForkServer | None = None,
    walls: Walls | None = None,
    environment: Mapping[str, str] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Run the task in a child process and wait for its end. To be called from a thread that stays until then.

    With a `server` the child is forked by it; else it is a fresh interpreter, behind `walls` if they are given, with
    this `environment` (default: this process's own; behind walls it is added to theirs). Raises WallsError where walls
    are wanted and cannot be had, ServerLostError if there is no server to be had.
    """
    group = Cgroup.create(limits)
    try:
        process = _start_process(task, limits, server, walls, environment)
    except BaseException:
        if group is not None:
            group.kill()
        raise
    if group is not None and not group.add(process.pid):
        group.kill()
        group = None
    return replace(supervise(process, limits, group=group, stopped=stopped), is_foreign=walls is not None)


def _start_process(
    task: Task,
    limits: Limits,
    server: ForkServer | None,
    walls: Walls | None,
    environment: Mapping[str, str] | None,
) -> Process:
    if walls is not None:
        with walls.prepare_start(limits) as prepared:
            return spawn(
                task,
                front=prepared.command,
                environment={**prepared.environment, **(environment or {})},
                descriptors=prepared.descriptors,
            )
    if server is not None:
        return server.fork(task)
    return spawn(task, environment=environment)

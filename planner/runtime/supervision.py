"""Watches one child until it ends: its time, its memory, its tasks, the size of its answer."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from planner.runtime import process_tree
from planner.runtime.cgroup import Cgroup
from planner.runtime.channel import BrokenAnswerError, parts_of
from planner.runtime.limits import UNLIMITED, Limit, LimitExceededError, Limits
from planner.runtime.task import Answer

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

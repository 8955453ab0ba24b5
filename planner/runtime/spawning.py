"""Starts a child as a fresh interpreter, behind walls if it runs code of users."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from planner.runtime.bootstrap import interpreter_words
from planner.runtime.task import Task, request_of

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

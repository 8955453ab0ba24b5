"""A child process of the program that finds something out and changes nothing in the program."""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import select
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from planner.paper import library

_AT_MOST, _GRACE_SECONDS = 3.0, 10.0
"""A child is ended after so many times its seconds, and some more to write down what it found."""


def fork_off(seconds: float, *, is_alone: bool = False) -> bytes | Callable[[Any], NoReturn]:
    """In the child: what ends it with an answer. In the program's process: the answer, pickled; empty if none came in
    time. A child that `is_alone` neither hears nor tells anything by what the program has opened, and opens no file to
    write. Raises OSError where no more processes are allowed."""
    with os.fdopen(os.memfd_create("answer"), "r+b") as answer:
        reads, writes = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        state = random.getstate()
        child = os.fork()
        if not child:
            random.setstate(state)  # Python seeds it anew in a child (Lib/random.py)
            library.load().paper_on_use(None)  # as in the program itself, data may lie on the GPU
            torch.cuda._is_in_bad_fork = lambda: False  # that of paper is as good in a child
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            file = os.fdopen(os.dup(answer.fileno()), "wb")

            def finish(result: Any) -> NoReturn:
                try:
                    file.write(pickle.dumps(result))
                    file.flush()
                finally:
                    os._exit(0)

            if is_alone:
                _leave_alone({file.fileno(), writes})
            return finish
        os.close(writes)
        wait = None if seconds == float("inf") else _AT_MOST * seconds + _GRACE_SECONDS
        ended = bool(select.select([reads], [], [], wait)[0])
        os.close(reads)
        if not ended:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        answer.seek(0)
        return answer.read() if ended else b""


def _leave_alone(kept: set[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - kept:
        try:
            mode, flags = os.fstat(descriptor).st_mode, fcntl.fcntl(descriptor, fcntl.F_GETFL)
        except OSError:  # that of the listing itself
            continue
        only_reads = stat.S_ISREG(mode) and flags & os.O_ACCMODE == os.O_RDONLY
        if not (only_reads or stat.S_ISCHR(mode) or stat.S_ISDIR(mode)):
            os.dup2(nothing, descriptor)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        # docs.python.org, Audit events table
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(f"{arguments[0]} is not written ahead of its time")

    sys.addaudithook(hear)

"""Ends compiling that takes too long: what Dynamo and Inductor do with a large graph may be hours."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from planner.errors import TraceError

USUAL_SECONDS = 900.0
"""For all that is compiled for one step, by the clock: three times what an isolated process has for all it does."""


class _TooLongError(BaseException):
    """Thrown into the thread that compiles. No Exception: compilers catch those and go on without what failed."""


class TimeLimit:
    """Adds up what compiling takes, of all threads."""

    def __init__(self, seconds: float = USUAL_SECONDS) -> None:
        self._seconds, self._left = seconds, seconds
        self._compiling: set[int] = set()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Around all that may compile. Raises TraceError when the time is over."""
        try:
            yield
        except _TooLongError:
            raise TraceError(
                f"compiling took more than {self._seconds:g} s",
                allowed=f"at most {self._seconds:g} s for one step",
                remedy="compile the blocks instead of the model (equal ones are compiled once), or delete it to plan"
                " the eager step",
                place="train.compile",
            ) from None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around one compilation; what is compiled within it counts with it."""
        thread = threading.get_ident()
        if thread in self._compiling:
            yield
            return
        timer = threading.Timer(max(self._left, 0), _throw, (thread, _TooLongError))
        timer.daemon = True
        began = time.monotonic()
        self._compiling.add(thread)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._compiling.discard(thread)
            self._left -= time.monotonic() - began


def _throw(thread: int, error: type[BaseException]) -> None:
    """As if a thread had raised this at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))

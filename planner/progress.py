"""What is going on, on standard error: for work of more than a second on a terminal, of more than ten anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_PATIENCE_SECONDS = 1.0
_TURN_SECONDS = 0.1
_LINE_SECONDS = 10.0
"""Between two lines where there is no terminal."""
_MARKS = "|/-\\"


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[ProgressLine]:
    """A line that says what is done now and for how long; without a terminal a further line every ten seconds."""
    line = ProgressLine(sys.stderr if stream is None else stream)
    line.start()
    try:
        yield line
    finally:
        line.stop()


class ProgressLine:
    """Call it with what begins now."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._what = ""
        self._began = time.monotonic()
        self._over = threading.Event()
        self._drawn = False
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def __call__(self, what: str) -> None:
        self._what = what

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.clear()

    def clear(self) -> None:
        """Takes the line off a terminal, until it is drawn again."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _turn(self) -> None:
        if self._stream.isatty():
            self._draw()
            return
        while not self._over.wait(_LINE_SECONDS):
            if self._what:
                self._stream.write(f"planner: {self._what} ({time.monotonic() - self._began:.0f} s)\n")
                self._stream.flush()

    def _draw(self) -> None:
        turn = 0
        while not self._over.wait(_TURN_SECONDS):
            seconds = time.monotonic() - self._began
            if seconds < _PATIENCE_SECONDS or not self._what:
                continue
            turn += 1
            self._stream.write(f"\r\x1b[K{_MARKS[turn % len(_MARKS)]} {self._what} ({seconds:.0f} s)")
            self._stream.flush()
            self._drawn = True

"""A terminal for programs that ask for its size: as large as that of who starts planner, and nobody types on it."""

from __future__ import annotations

import os
import shutil
import termios
from contextlib import suppress
from typing import Any

_STANDARD = range(3)
"""Standard input, output and error."""


def terminal_variables() -> dict[str, str]:
    """COLUMNS and LINES of the terminal that planner is started from; nothing where there is none."""
    for descriptor in _STANDARD:
        with suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return {}


def take_terminal() -> None:
    """Standard input becomes a terminal of COLUMNS x LINES, of 80x24 where these do not stand in the environment. It is
    at its end whenever it is read; it stays until this process ends. Where the system has no terminals nothing is
    changed."""
    columns, lines = shutil.get_terminal_size()
    with suppress(OSError, termios.error):
        _, terminal = os.openpty()  # the other end stays open, or this one would be cut off
        termios.tcsetwinsize(terminal, (lines, columns))
        mode: list[Any] = termios.tcgetattr(terminal)
        mode[3] &= ~termios.ICANON
        mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0
        termios.tcsetattr(terminal, termios.TCSANOW, mode)
        os.dup2(terminal, 0)
        os.close(terminal)

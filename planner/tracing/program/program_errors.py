"""Describes an error that a program raises, and says whether it is the program's own or planner's."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

from planner.errors import shorten
from planner.tracing.program.absent_files import find_absent
from planner.tracing.program.packages import stand_ins
from planner.tracing.program.packages.package_table import program_line
from planner.tracing.program.rank_orders import Crash

MOST_LINES, MOST_CHARACTERS = 10, 1000
"""Of a program's own error: its last lines, each whole as long as a person reads it."""
_FROZEN = "<frozen"


def describe_crash(error: BaseException) -> Crash:
    """What the process tells of an error that the program has raised."""
    lines = "".join(traceback.format_exception_only(error)).rstrip("\n").splitlines()
    last = next((line for line in lines if type(error).__name__ in line), lines[0])
    if last.endswith(": "):  # a compiler's error stands below the source that it prints first
        last += lines[-1]
    return Crash(
        said=shorten(last, MOST_CHARACTERS) + _refused_before(),
        place=program_line(error),
        sought=tuple(stand_ins.SOUGHT) if isinstance(error, ImportError) else (),
        absent=find_absent(error),
        no_room=isinstance(error, OSError) and error.errno == errno.ENOSPC,
        text=_own_traceback(error),
    )


def _refused_before() -> str:
    from planner.paper import library  # it starts the paper GPU, which is there in ranks alone

    function = library.load().paper_refused_function().decode()
    return f" (before, it called {function}, which cannot answer without a GPU)" if function else ""


def _own_traceback(error: BaseException) -> str:
    """Its last lines, from the program's first line on: what led there is planner's and runpy's."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    lines = "".join(traceback.format_exception(type(error), error, frames)).strip().splitlines()
    left = len(lines) - MOST_LINES
    kept = [shorten(line, MOST_CHARACTERS) for line in lines[-MOST_LINES:]]
    return "\n".join([f"... {left} lines before these", *kept] if left > 0 else kept)


def _is_ours(path: str) -> bool:
    return path.startswith((str(Path(__file__).parents[2]), _FROZEN))


def is_our_fault(error: BaseException) -> bool:
    """Whether it was raised in planner's own code; what Python's frozen modules raise is their caller's."""
    paths = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = [path for path in paths if not path.startswith(_FROZEN)]
    return bool(called) and _is_ours(called[-1])

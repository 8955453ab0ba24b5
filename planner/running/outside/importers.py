"""Who imports a module, and whether the program can go on without it."""

from __future__ import annotations

import ast
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import FrameType

from planner.running.assumptions import place_of

_MISSING = {"ImportError", "ModuleNotFoundError"}
_EVERYTHING = {"Exception", "BaseException"}
_OURS = str(Path(__file__).parents[2])
_STANDARD = sysconfig.get_paths()["stdlib"]


def frames() -> list[FrameType]:
    """Those of the code that imports, innermost first: neither the import system's nor planner's."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(("<", _OURS)) and "/importlib/" not in path:
            found.append(frame)
        frame = frame.f_back
    return found


class Way(StrEnum):
    """How a module is asked for."""

    STATEMENT = "statement"
    BY_NAME = "by name"
    """`importlib.import_module`."""
    ASKED = "asked"
    """Only whether it is there (`importlib.util.find_spec`)."""


def way() -> Way:
    """How the module is asked for that the import system looks for now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename.startswith(_OURS) or "importlib" in frame.f_code.co_filename):
        if "importlib.util" in frame.f_code.co_filename or frame.f_code.co_filename.endswith("importlib/util.py"):
            return Way.ASKED
        if frame.f_code.co_name == "import_module":
            return Way.BY_NAME
        frame = frame.f_back
    return Way.STATEMENT


def is_guarded(importing: list[FrameType]) -> bool:
    """Whether an error of the import is caught: at the import by any handler that takes it, around the code that led
    there by one that names it."""
    return any(
        is_caught(frame.f_code.co_filename, frame.f_lineno, is_import=number == 0)
        for number, frame in enumerate(importing)
    )


def is_caught(path: str, line: int, *, is_import: bool = True) -> bool:
    """Whether an error of an import, at this line or in what it calls, is caught there."""
    wanted = _MISSING | (_EVERYTHING if is_import else set())
    return any(
        begin <= line <= end and (names & wanted or (is_import and not names)) for begin, end, names in _tries(path)
    )


def belongs_to_program(frame: FrameType) -> bool:
    """Not to an installed package, nor to Python."""
    path = frame.f_code.co_filename
    return "site-packages" not in path and "dist-packages" not in path and not path.startswith(_STANDARD)


def program_line(error: BaseException) -> str:
    """The innermost line of the program in the traceback of an error (`train.py:12`); empty if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if belongs_to_program(frame)]
    return place_of(frames[::-1])


def is_of(frame: FrameType, package: str) -> bool:
    """Whether the frame runs a module of this top-level package."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == package


@cache
def _tries(path: str) -> tuple[tuple[int, int, frozenset[str]], ...]:
    """Of every handler of a file: the lines of its `try`, and the names of errors that it takes; none takes all."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(
        (node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno, frozenset(_names(handler.type)))
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for handler in node.handlers
    )


def _names(error: ast.expr | None) -> Iterator[str]:
    for node in ast.walk(error) if error is not None else ():
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr

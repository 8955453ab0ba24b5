"""What the report of a program's run rests on besides the program: answered values, branches, work left out."""

from __future__ import annotations

import dis
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import takewhile
from pathlib import PurePath
from types import CodeType, FrameType

from planner.runtime.own_code import is_programs

_LIBRARIES = ("torch", "planner", "runpy", "multiprocessing", "multiprocess", "concurrent", "subprocess")


class About(StrEnum):
    """What an assumption is about."""

    VALUE = "value"
    PEERS = "peers"
    HOST = "host"
    DEVICE = "device"
    COMPILING = "compiling"
    PACKAGES = "packages"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One sentence, and where in the program it was needed (`train.py:12`); `place` may be empty."""

    about: About
    text: str
    place: str = ""
    count: int = 1


class Assumptions:
    """Collects them while a program runs; the same one at the same place is counted."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[About, str, str]] = Counter()

    def add(self, about: About, text: str, place: str = "") -> None:
        self._counts[about, text, place] += 1

    def all(self) -> tuple[Assumption, ...]:
        """In the order in which they were first made."""
        return tuple(Assumption(*key, count) for key, count in self._counts.items())


def program_frame(frames: Iterable[FrameType]) -> FrameType | None:
    """The innermost frame that is neither torch's nor planner's."""
    for frame in frames:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _LIBRARIES and not frame.f_code.co_filename.startswith("<"):
            return frame
    return None


def program_place(frames: Iterable[FrameType]) -> str:
    """The line of that frame, for people; empty if there is none. A line may hold several calls."""
    frame = program_frame(frames)
    return "" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def current_frame() -> FrameType | None:
    """The innermost frame of the program that led here."""
    return program_frame(frame for frame, _ in traceback.walk_stack(sys._getframe()))


def current_place() -> str:
    """The line of that frame, for people."""
    frame = current_frame()
    return program_place(() if frame is None else (frame,))


def short_path(path: str) -> str:
    """From the folder of packages on, or the last two parts."""
    parts = PurePath(path).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return "/".join(parts[-2:]).removeprefix("/")


_BETWEEN = frozenset({"CACHE", "UNARY_NOT", "TO_BOOL", "COPY", "NOT_TAKEN"})
"""What may come between a value and the jump that it decides (Python 3.11 to 3.14, module dis)."""
_EQUALITIES = frozenset({"==", "!=", "bool(==)", "bool(!=)"})
"""Of COMPARE_OP, as dis writes it (Python 3.11 to 3.14)."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of the program at which a truth value that was answered decides."""

    place: str
    answer: bool
    raises: bool = False
    """Whether the other answer raises an error at once (`assert`, `if ...: raise`), in a function that catches none."""


def find_branch(frames: Sequence[FrameType], answer: object) -> Branch | None:
    """The branch that an answer decides; `frames` are those of the read, innermost first. Lines of libraries are none:
    what a program asks for itself is what may go either way."""
    frame = program_frame(frames)
    if not isinstance(answer, bool) or frame is None or not is_programs(frame.f_code):
        return None
    jump = _find_jump(frame.f_code, frame.f_lasti)
    return None if jump is None else Branch(program_place([frame]), answer, _raises(frame.f_code, jump, not answer))


@cache
def _find_jump(code: CodeType, offset: int) -> int | None:
    """The number of the instruction that jumps by the value, which the one at `offset` is or hands it to; None where
    none does."""
    instructions = [*dis.get_instructions(code)]
    first = next(number for number, instruction in enumerate(instructions) if instruction.offset >= offset)
    for number, instruction in enumerate(instructions[first : first + 6], first):
        if "JUMP" in instruction.opname and "IF" in instruction.opname:
            return number
        if number > first and instruction.opname not in _BETWEEN:
            return None
    return None


@cache
def _raises(code: CodeType, jump: int, value: bool) -> bool:
    """Whether a straight way leads from the jump, with that value, to an error, in a function that catches none."""
    if code.co_exceptiontable:
        return False
    instructions = [*dis.get_instructions(code)]
    before = takewhile(lambda each: each.opname in _BETWEEN, reversed(instructions[:jump]))
    value ^= sum(each.opname == "UNARY_NOT" for each in before) % 2 == 1
    follows = jump + 1
    if ("TRUE" in instructions[jump].opname) == value:
        target = instructions[jump].argval
        follows = next(number for number, each in enumerate(instructions) if each.offset == target)
    for instruction in instructions[follows:]:
        name = instruction.opname
        if name == "RAISE_VARARGS":
            return True
        if "JUMP" in name or name.startswith(("RETURN", "YIELD", "FOR_ITER", "SEND")):
            return False
    return False


def is_compared(frames: Sequence[FrameType]) -> bool:
    """Whether what is read is compared at once with what stands beside it (`loss.item() == 1`), by the program or a
    library, and not within torch."""
    return bool(frames) and bool(program_place(frames[:1])) and _compares(frames[0].f_code, frames[0].f_lasti)


@cache
def _compares(code: CodeType, offset: int) -> bool:
    """Whether the instruction there is followed by one that loads something, and then one that asks for equality."""
    following = [instruction for instruction in dis.get_instructions(code) if instruction.offset > offset]
    loads = list(takewhile(lambda each: each.opname.startswith("LOAD_"), following))
    after = following[len(loads) : len(loads) + 1]
    return bool(loads and after) and (after[0].opname == "CONTAINS_OP" or after[0].argrepr in _EQUALITIES)

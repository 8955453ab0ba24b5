"""Finds out whether a truth value that a program reads decides at once which of its lines run next."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType

from planner.running.assumptions import place_of

_BETWEEN = frozenset({"CACHE", "UNARY_NOT", "TO_BOOL", "COPY", "NOT_TAKEN"})
"""What may come between a value and the jump that it decides (Python 3.11 to 3.14, module dis)."""
_NOT_THE_PROGRAMS = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of the program at which a truth value that was answered decides."""

    place: str
    answer: bool


def branch_at(frames: Sequence[FrameType], answer: object) -> Branch | None:
    """The branch that an answer decides; `frames` are those of the read, innermost first. Lines of libraries are none:
    what a program asks for itself is what may go either way."""
    place = place_of(frames)
    if not isinstance(answer, bool) or not place:
        return None
    frame = next(each for each in frames if place_of([each]) == place)
    if any(each in frame.f_code.co_filename for each in _NOT_THE_PROGRAMS):
        return None
    return Branch(place, answer) if _decides(frame.f_code, frame.f_lasti) else None


@cache
def _decides(code: CodeType, offset: int) -> bool:
    """Whether the instruction there jumps by the value, or hands it to one that does."""
    following = [each for each in dis.get_instructions(code) if each.offset >= offset]
    for number, each in enumerate(following[:6]):
        if "JUMP" in each.opname and "IF" in each.opname:
            return True
        if number and each.opname not in _BETWEEN:
            return False
    return False

"""What the report of a program's run rests on besides the program: values that were answered, what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from types import FrameType

_LIBRARIES = ("torch", "planner", "runpy", "multiprocessing", "concurrent")


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
        """Once more."""
        self._counts[about, text, place] += 1

    def all(self) -> tuple[Assumption, ...]:
        """In the order in which they were first made."""
        return tuple(Assumption(*key, count) for key, count in self._counts.items())


def place_of(frames: Sequence[FrameType]) -> str:
    """The innermost line that is neither torch's nor planner's; empty if there is none."""
    for frame in frames:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _LIBRARIES and not frame.f_code.co_filename.startswith("<"):
            return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
    return ""


def short_path(path: str) -> str:
    """From the folder of packages on, or the last two parts."""
    parts = PurePath(path).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return "/".join(parts[-2:]).removeprefix("/")

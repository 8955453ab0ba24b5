"""The Python traceback around a message, and the rank that wrote it, in a log of many ranks."""

from __future__ import annotations

import re

from planner.out_of_memory.failure import Frame

_BACK = 64 * 1024
"""Characters before a message in which its traceback is looked for."""
_MOST_FRAMES = 100
_LONGEST_PREFIX = 300
"""Characters before a message on its line, in which a rank is looked for."""
_FRAME = re.compile(r'File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,200})')
_BEGIN = "Traceback (most recent call last)"
_RANK = re.compile(r"\[rank(\d{1,7})\]:|\brank[ =](\d{1,7})\b|\(VllmWorker[^)\n]*rank=(\d{1,7})")


def frames_before(text: str, at: int) -> tuple[Frame, ...]:
    """The frames of the traceback that ends with what stands at `at`, outermost first; none where there is none."""
    before = text[max(0, at - _BACK) : at]
    begin = before.rfind(_BEGIN)
    if begin < 0:
        return ()
    found = [
        Frame(match["file"], int(match["line"]), match["function"].strip()) for match in _FRAME.finditer(before, begin)
    ]
    return tuple(found[-_MOST_FRAMES:])


def rank_of(text: str, at: int) -> int | None:
    """The rank that the line itself names, as torchrun's and vLLM's prefixes do."""
    start = text.rfind("\n", max(0, at - _LONGEST_PREFIX), at) + 1 or max(0, at - _LONGEST_PREFIX)
    match = _RANK.search(text, start, at)
    return int(next(group for group in match.groups() if group)) if match else None


def innermost_own(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line outside of torch's own files; the innermost of all where there is no other."""
    own = [each for each in frames if "/torch/" not in each.file.replace("\\", "/")]
    return next(reversed(own or frames), None)

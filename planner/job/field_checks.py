"""What a single value of a job spec may be: the types of its fields, each with its check."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from planner.job.size_limits import MOST_GPU_BYTES, MOST_HOST_BYTES

MOST = 2**40
"""No count of a job is larger; torch's own integers end at 2**63."""
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Check:
    """What a value may be: in words for messages, as a function, and by name where there are names."""

    allowed: str
    accepts: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    size: bool = False
    """Written as bytes with a unit (`79.1GiB`), held as whole bytes."""
    unit: str = ""
    """Of a number; a size's is bytes."""
    tokens: bool = False
    """May be written as `4k`."""
    least: int | None = None
    """Of a whole number."""


def whole(least: int, unit: str = "", most: int = MOST) -> Check:
    """A whole number; a limit of its own is named."""
    allowed = f"a whole number from {least}" + ("" if most == MOST else f" to {most}")
    return Check(allowed, lambda value: least <= value <= most, unit=unit, least=least)


def tokens(least: int) -> Check:
    """A number of tokens."""
    count = whole(least, "tokens")
    return replace(count, allowed=f"{count.allowed}, or such as 4k", tokens=True)


def number(allowed: str, least: float, most: float = MOST, unit: str = "") -> Check:
    """A number from `least` to `most`."""
    return Check(allowed, lambda value: least <= value <= most, unit=unit)


def one_of(*names: str, allowed: str = "") -> Check:
    """One of these names."""
    return Check(allowed or ", ".join(name or '""' for name in names), lambda value: value in names, names=names)


def like(pattern: str, allowed: str, longest: int = _LONGEST_TEXT) -> Check:
    """A text of this pattern. Never matches a longer text: some patterns take time that grows faster than it."""
    return Check(allowed, lambda value: len(value) <= longest and re.fullmatch(pattern, value) is not None)


def size(least: int, allowed: str, most: int = MOST_GPU_BYTES) -> Check:
    """A number of bytes."""
    return Check(allowed, lambda value: least <= value <= most, size=True, unit="bytes")


def anything(allowed: str) -> Check:
    """Whatever has the field's type, or is read by a function of its own."""
    return Check(allowed, lambda _: True)


FLOATING = one_of("float64", "float32", "bfloat16", "float16")

Count = Annotated[int, whole(1)]
Ranks = Annotated[int, whole(1, "ranks")]
Samples = Annotated[int, whole(1, "samples")]
Iterations = Annotated[int, whole(1, "iterations")]
Tokens = Annotated[int, tokens(0)]
SomeTokens = Annotated[int, tokens(1)]
HostBytes = Annotated[int, size(0, "a size from 0 to 1024TiB, such as 480GiB", MOST_HOST_BYTES)]
NotNegative = Annotated[float, number("a number from 0", 0)]
PositiveMib = Annotated[float, Check("a number larger than 0", lambda value: 0 < value <= MOST, unit="MiB")]
Reshard = Annotated[
    bool | int,
    Check("true, false or a whole number from 1", lambda value: isinstance(value, bool) or 1 <= value <= MOST),
]
Text = Annotated[str, Check(f"text of up to {_LONGEST_TEXT} characters", lambda value: len(value) <= _LONGEST_TEXT)]
Path = Annotated[str, Check("a path", lambda value: len(value) <= 4000 and "\0" not in value)]
Floating = Annotated[str, FLOATING]
PlainData = Annotated[Mapping[str, Any], anything("text, numbers, true, false, null, lists and mappings")]
Config = Annotated[
    Mapping[str, Any] | None, anything("the name of a well-known model, the path of a config.json, or its content")
]

_TRUTH = anything("true or false")


def checks_of(kind: type) -> dict[str, Check]:
    """The checks of a dataclass's fields, by their names; sections have none."""
    checks = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if typing.get_origin(hint) is Annotated:
            checks[name] = hint.__metadata__[0]
        elif hint is bool:
            checks[name] = _TRUTH
    return checks

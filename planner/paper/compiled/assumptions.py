"""What compiling assumed where a GPU would have been timed or asked."""

from __future__ import annotations

from collections import defaultdict

from torch._guards import CompileContext

ASSUMED: set[str] = set()
"""Sentences, for the report; since the last `forget`."""
_by_compilation: defaultdict[object, set[str]] = defaultdict(set)


def assume(sentence: str) -> None:
    """Said now, and again whenever the code that is being compiled is run: it may come from a cache next time."""
    ASSUMED.add(sentence)
    _by_compilation[CompileContext.current_compile_id()].add(sentence)


def of_this_compilation() -> list[str]:
    """What was assumed for the code that is written now."""
    return sorted(_by_compilation[CompileContext.current_compile_id()])


def forget() -> None:
    ASSUMED.clear()
    _by_compilation.clear()

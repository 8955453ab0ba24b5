"""Arguments that a job passes on to a class or function of torch, under the names that it has there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from planner.errors import SpecError
from planner.job.nodes import did_you_mean


def check_arguments(
    callee: Callable[..., Any], arguments: Mapping[str, Any], place: str, *, taken: Collection[str] = ()
) -> dict[str, Any]:
    """The arguments, lists as tuples, since YAML has none and Adam compares its betas with one.

    Raises SpecError for one that the installed `callee` does not have, or that is `taken`: planner gives it.
    """
    allowed = [name for name in inspect.signature(callee).parameters if name not in taken]
    for name in arguments:
        if name not in allowed:
            raise SpecError(
                f"{callee.__name__} does not take the argument {name!r}",
                allowed=", ".join(allowed),
                remedy=did_you_mean(name, allowed),
                place=f"{place}.{name}",
            )
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}

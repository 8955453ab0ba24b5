"""Reads parts of objects of the Kubernetes API. What is not as the API would have it is empty."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST = 2**24
"""Of whatever is counted."""


def part(document: Any, *path: str) -> Mapping[str, Any]:
    """The object at this path of an object; empty where the API would have one and there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def parts(document: Any, *path: str) -> list[Mapping[str, Any]]:
    """The objects of the list at this path."""
    *parents, name = path
    return [part(item) for item in items(part(document, *parents).get(name))]


def items(value: Any) -> list[Any]:
    """A list."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A text."""
    return value if isinstance(value, str) else ""


def number(value: Any, otherwise: int = 0) -> int:
    """A count, as the API writes it: `8`, or the quantity `"8"`."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,8}", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, MOST)
    return otherwise

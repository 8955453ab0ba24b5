"""Checks names that identify something, and cleans names that only label it."""

from __future__ import annotations

import re

from planner.history.history_errors import HistoryError

LONGEST = 253
"""Characters: what a Kubernetes name, and a host name, may have."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_name(text: str, place: str) -> str:
    """The name as it came. Raises HistoryError if it is empty, too long, or has control characters."""
    if not text or len(text) > LONGEST or _CONTROL.search(text):
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise HistoryError(
            f"{shown!a} is no name", allowed=f"1 to {LONGEST} characters, no control characters", place=place
        )
    return text


def checked_label(text: str, place: str) -> str:
    """As :func:`checked_name`, but may be empty."""
    return checked_name(text, place) if text else text


def label(value: object) -> str:
    """Whatever stands in a spec, as text that every database takes."""
    return _CONTROL.sub(" ", str(value))[:LONGEST]

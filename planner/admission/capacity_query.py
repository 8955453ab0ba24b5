"""Asks a planner service for the capacity of its cluster, for `planner capacity`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from planner.admission.client import Client
from planner.errors import PlannerError, SettingError

MOST_SECONDS = 600.0
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_ALLOWED = "30d, 12h, 4w, or a moment such as 2026-01-31T12:00:00Z"


def ask(
    server: str,
    *,
    token: str = "",
    since: str = "",
    on: Sequence[str] = (),
    add_nodes: int | None = None,
    gpus_per_node: int = 8,
    seconds: float = 10.0,
) -> Mapping[str, Any]:
    """What `GET /v1/capacity` answers within so many seconds.

    Raises SettingError without a server, PlannerError for a question that makes no sense, UnreachableError.
    """
    if not server:
        raise SettingError("no planner service is named", remedy="--server URL, or PLANNER_SERVER", place="--server")
    if not 0 < seconds <= MOST_SECONDS:
        raise PlannerError("that is no time to wait", allowed=f"up to {MOST_SECONDS:g} seconds", place="--timeout")
    question = [("on", gpu) for gpu in on]
    if since:
        question.append(("since", moment(since, datetime.now(UTC)).isoformat()))
    if add_nodes is not None:
        question += [("add_nodes", str(add_nodes)), ("gpus_per_node", str(gpus_per_node))]
    try:
        client = Client(server, token, timeout_seconds=seconds)
    except ValueError as error:
        raise PlannerError(str(error), place="--server") from None
    return client.capacity(question)


def moment(written: str, now: datetime) -> datetime:
    """`30d` before now, or the moment itself; PlannerError for anything else, also one without a time zone."""
    ago = re.fullmatch(r"([0-9]{1,4})([hdw])", written)
    if ago is not None:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        raise PlannerError(f"`{written[:40]}` is not a time", allowed=_ALLOWED, place="--since") from None
    if found.tzinfo is None:
        raise PlannerError("the moment has no time zone", allowed=_ALLOWED, place="--since")
    return found

"""Writes a search as the JSON object `planner.search/1`, whether it runs or is over."""

from __future__ import annotations

from typing import Any

from planner.errors import PlannerError
from planner.history.search_table import Search
from planner.searching.documents import SEARCH, search_to_json
from planner.searching.engine import SearchResult
from planner.searching.weighing import MOST_LOOKED_AT

_ERROR = ("problem", "allowed", "remedy", "place")


def of_result(result: SearchResult, top: int) -> dict[str, Any]:
    """What is known by now; `progress` says of how much."""
    scales = result.scales
    return {
        **search_to_json(result),
        "progress": {
            "doing": result.doing,
            "looked_at": scales.looked_at,
            "to_look_at": min(scales.size, MOST_LOOKED_AT),
            "planned": result.planned,
            "traces_left": result.traces_left,
            "found": len(result.rows),
            "wanted": top,
        },
        **of_error(None),
    }


def of_error(error: PlannerError | None) -> dict[str, Any]:
    """What is wrong with a search, in the words of a problem; null where nothing is."""
    if error is None:
        return {"problem": None}
    said = {name: getattr(error, name) for name in _ERROR}
    return {"problem": {name: value for name, value in said.items() if value}}


def to_json(search: Search) -> dict[str, Any]:
    """As it is answered. `complete` is true of a search that is done only."""
    asked = {key: value for key, value in search.request.items() if key != "job"}
    known = {key: value for key, value in search.document.items() if key != "schema"}
    return {
        "schema": SEARCH,
        "search_id": search.search_id,
        "state": search.state.value,
        "asked_at": search.asked_at.isoformat(),
        "finished_at": None if search.finished_at is None else search.finished_at.isoformat(),
        "request": asked,
        **known,
        "complete": search.state.value == "done",
    }

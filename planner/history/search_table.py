"""Stores searches: what was asked, what is known by now, and the plans that one that ended early goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, select

from planner.history.columns import compact_json
from planner.history.database import Database, upsert
from planner.history.names import checked_name, label
from planner.history.schema import SEARCHES


class State(StrEnum):
    """How far a search is. STOPPED: it ended before its end, and goes on where it was when it is asked for again.
    REFUSED: its space is empty, or what is asked does not go together."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search. `request` is what has to be known to run it again, `document` what it says of itself."""

    search_id: str
    state: State
    asked_at: datetime
    finished_at: datetime | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)


class Searches:
    """What was searched for. One process writes: that which runs them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, search: Search, answers: Mapping[str, Any] | None = None) -> None:
        """Store the search as it now is; without `answers` those that are there stay."""
        row = {
            "search_id": checked_name(search.search_id, "search_id"),
            "state": search.state.value,
            "asked_at": search.asked_at,
            "finished_at": search.finished_at,
            "request": compact_json(search.request),
            "document": compact_json(search.document),
            "answers": compact_json(answers or {}),
        }
        kept = {"search_id"} if answers is not None else {"search_id", "answers"}
        with self._database.writing() as connection:
            connection.execute(
                upsert(connection, SEARCHES, row).on_conflict_do_update(
                    index_elements=["search_id"],
                    set_={name: value for name, value in row.items() if name not in kept},
                )
            )

    def get(self, search_id: str) -> Search | None:
        """The search; None if there is none."""
        columns = [each for each in SEARCHES.c if each.name != "answers"]
        query = select(*columns).where(SEARCHES.c.search_id == label(search_id))
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        return None if found is None else _search(found)

    def answers(self, search_id: str) -> dict[str, Any]:
        """What plans said of its candidates, by a name that the runner gives them."""
        query = select(SEARCHES.c.answers).where(SEARCHES.c.search_id == label(search_id))
        with self._database.reading() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return {} if found is None else dict(json.loads(found))

    def in_state(self, state: State, limit: int) -> tuple[Search, ...]:
        """At most `limit` searches, oldest first."""
        columns = [each for each in SEARCHES.c if each.name != "answers"]
        query = select(*columns).where(SEARCHES.c.state == state.value).order_by(SEARCHES.c.asked_at).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(_search(row) for row in rows)


def _search(row: Row[Any]) -> Search:
    return Search(
        search_id=row.search_id, state=State(row.state), asked_at=row.asked_at, finished_at=row.finished_at,
        request=json.loads(row.request), document=json.loads(row.document),
    )  # fmt: skip

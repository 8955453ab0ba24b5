"""Stores validations: what a step was measured to take, beside its plan."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, func, select

from planner.history.columns import compact_json
from planner.history.database import Database, upsert
from planner.history.names import checked_label, checked_name, label
from planner.history.schema import VALIDATIONS
from planner.history.totals import add, observe_value

ERRORS = "validation_error"
"""The distribution of errors, as a ratio, by GPU and torch: unlike the validations, it is never forgotten."""
ERROR_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_SHORT = 60


class State(StrEnum):
    """How far a validation is. REFUSED: there is no such GPU, or it is not allowed; nothing was run."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        return self in (State.DONE, State.FAILED, State.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One validation. `result` is its document, predicted beside measured; `error_percent` DNNMem's."""

    validation_id: str
    plan_id: str
    state: State
    asked_at: datetime
    mode: str = ""
    gpu: str = ""
    torch: str = ""
    finished_at: datetime | None = None
    out_of_memory: bool | None = None
    error_percent: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why it failed or was refused, in a sentence."""


class Validations:
    """What was measured."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, validation: Validation) -> None:
        """Store the validation as it now is; one that is over stays as it ended, whoever comes late."""
        row = {
            "validation_id": checked_name(validation.validation_id, "validation_id"),
            "plan_id": checked_label(validation.plan_id, "plan_id"),
            "state": validation.state.value,
            **{name: label(getattr(validation, name)) for name in ("mode", "gpu", "torch")},
            "asked_at": validation.asked_at,
            "finished_at": validation.finished_at,
            "out_of_memory": validation.out_of_memory,
            "error_percent": validation.error_percent,
            "result": compact_json(validation.result),
            # NUL is the one character that a text of PostgreSQL cannot have.
            "problem": validation.problem.encode("utf-8", "replace").decode().replace("\0", " "),
        }
        over = [state.value for state in State if state.final]
        with self._database.writing() as connection:
            statement = upsert(connection, VALIDATIONS, row).on_conflict_do_update(
                index_elements=["validation_id"],
                set_={name: value for name, value in row.items() if name not in ("validation_id", "asked_at")},
                where=VALIDATIONS.c.state.not_in(over),
            )
            # An error counts when its validation ends, and once: in the transaction that stores it.
            stored = connection.execute(statement.returning(VALIDATIONS.c.validation_id)).first()
            ended = stored is not None and validation.state is State.DONE
            if ended and validation.error_percent is not None and math.isfinite(validation.error_percent):
                labels = tuple((name, label(getattr(validation, name))[:_SHORT]) for name in ("gpu", "torch"))
                add(connection, observe_value(ERRORS, abs(validation.error_percent) / 100, ERROR_BOUNDS, labels))

    def get(self, validation_id: str) -> Validation | None:
        """The validation; None if there is none."""
        query = select(VALIDATIONS).where(VALIDATIONS.c.validation_id == label(validation_id))
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        return None if found is None else _validation(found)

    def newest(
        self, limit: int = 100, *, plan_id: str | None = None, state: State | None = None, gpu: str | None = None
    ) -> tuple[Validation, ...]:
        """At most `limit` validations, newest first."""
        query = select(VALIDATIONS).order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id).limit(limit)
        for name, value in {"plan_id": plan_id, "state": state and state.value, "gpu": gpu}.items():
            if value is not None:
                query = query.where(VALIDATIONS.c[name] == label(value))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(_validation(row) for row in rows)

    def counts(self) -> dict[State, int]:
        """How many validations that are still remembered are in each state."""
        query = select(VALIDATIONS.c.state, func.count()).group_by(VALIDATIONS.c.state)
        with self._database.reading() as connection:
            return {State(state): count for state, count in connection.execute(query)}

    def errors(self, limit: int = 1000) -> dict[tuple[str, str], tuple[float, ...]]:
        """Errors in percent of the newest validations, by GPU and torch; the newest first."""
        query = (
            select(VALIDATIONS.c.gpu, VALIDATIONS.c.torch, VALIDATIONS.c.error_percent)
            .where(VALIDATIONS.c.state == State.DONE.value, VALIDATIONS.c.error_percent.is_not(None))
            .order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id)
            .limit(limit)
        )
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        with self._database.reading() as connection:
            for gpu, torch, error in connection.execute(query):
                found[gpu, torch].append(error)
        return {group: tuple(errors) for group, errors in found.items()}


def _validation(row: Row[Any]) -> Validation:
    return Validation(
        validation_id=row.validation_id, plan_id=row.plan_id, state=State(row.state), asked_at=row.asked_at,
        mode=row.mode, gpu=row.gpu, torch=row.torch, finished_at=row.finished_at, out_of_memory=row.out_of_memory,
        error_percent=row.error_percent, result=json.loads(row.result), problem=row.problem,
    )  # fmt: skip

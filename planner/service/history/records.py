"""Stores checks, searches, validations and calibrations."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, func, select

from planner.report.statement import Verdict
from planner.service.history.counters import add, observe_value
from planner.service.history.database import Database, put, upsert
from planner.service.history.errors import checked_label, checked_name, label
from planner.service.history.schema import CALIBRATIONS, CHECKS, SEARCHES, VALIDATIONS, compact_json

VERDICTS = "verdicts"
"""The total of the verdicts that were given, by verdict: unlike the checks, it is never forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer; `verdict` is None while the plan is still being made."""

    check_id: str
    plan_id: str
    asked_at: datetime
    verdict: Verdict | None = None
    system: str = ""
    """Which hook asked: slurm, ray, kubernetes, cli, ..."""
    name: str = ""
    team: str = ""
    queue: str = ""


class Checks:
    """What was asked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, check: Check) -> None:
        """Store the check, or its verdict when it is known; a verdict is never forgotten again."""
        row = {
            "check_id": checked_name(check.check_id, "check_id"),
            "plan_id": checked_label(check.plan_id, "plan_id"),
            "asked_at": check.asked_at,
            "verdict": "" if check.verdict is None else check.verdict.value,
            **{name: label(getattr(check, name)) for name in ("system", "name", "team", "queue")},
        }
        with self._database.writing() as connection:
            statement = upsert(connection, CHECKS, row)
            later = {"plan_id": row["plan_id"], "verdict": row["verdict"]}
            unanswered = CHECKS.c.verdict == ""
            answered = statement.on_conflict_do_update(index_elements=["check_id"], set_=later, where=unanswered)
            # A verdict counts when it is first stored, and once: in the transaction that stores it.
            told = connection.execute(answered.returning(CHECKS.c.check_id)).first()
            if told is not None and check.verdict is not None:
                add(connection, {(VERDICTS, (("verdict", check.verdict.value),)): 1})

    def newest(self, limit: int = 100, *, plan_id: str | None = None) -> tuple[Check, ...]:
        """At most `limit` checks, newest first."""
        query = select(CHECKS).order_by(CHECKS.c.asked_at.desc(), CHECKS.c.check_id).limit(limit)
        if plan_id is not None:
            query = query.where(CHECKS.c.plan_id == label(plan_id))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(
            Check(
                check_id=row.check_id, plan_id=row.plan_id, asked_at=row.asked_at, system=row.system, name=row.name,
                team=row.team, queue=row.queue, verdict=Verdict(row.verdict) if row.verdict else None,
            )
            for row in rows
        )  # fmt: skip

    def counts(self) -> dict[Verdict | None, int]:
        """How many checks that are still remembered got each verdict; None: not answered yet."""
        query = select(CHECKS.c.verdict, func.count()).group_by(CHECKS.c.verdict)
        with self._database.reading() as connection:
            return {Verdict(verdict) if verdict else None: count for verdict, count in connection.execute(query)}


class SearchState(StrEnum):
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
    state: SearchState
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

    def in_state(self, state: SearchState, limit: int) -> tuple[Search, ...]:
        """At most `limit` searches, oldest first."""
        columns = [each for each in SEARCHES.c if each.name != "answers"]
        query = select(*columns).where(SEARCHES.c.state == state.value).order_by(SEARCHES.c.asked_at).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(_search(row) for row in rows)


def _search(row: Row[Any]) -> Search:
    return Search(
        search_id=row.search_id, state=SearchState(row.state), asked_at=row.asked_at, finished_at=row.finished_at,
        request=json.loads(row.request), document=json.loads(row.document),
    )  # fmt: skip


ERRORS = "validation_error"
"""The distribution of errors, as a ratio, by GPU and torch: unlike the validations, it is never forgotten."""
ERROR_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_SHORT = 60


class ValidationState(StrEnum):
    """How far a validation is. REFUSED: there is no such GPU, or it is not allowed; nothing was run."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        return self in (ValidationState.DONE, ValidationState.FAILED, ValidationState.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One validation. `result` is its document, predicted beside measured; `error_percent` DNNMem's."""

    validation_id: str
    plan_id: str
    state: ValidationState
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
        over = [state.value for state in ValidationState if state.final]
        with self._database.writing() as connection:
            statement = upsert(connection, VALIDATIONS, row).on_conflict_do_update(
                index_elements=["validation_id"],
                set_={name: value for name, value in row.items() if name not in ("validation_id", "asked_at")},
                where=VALIDATIONS.c.state.not_in(over),
            )
            # An error counts when its validation ends, and once: in the transaction that stores it.
            stored = connection.execute(statement.returning(VALIDATIONS.c.validation_id)).first()
            ended = stored is not None and validation.state is ValidationState.DONE
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
        self,
        limit: int = 100,
        *,
        plan_id: str | None = None,
        state: ValidationState | None = None,
        gpu: str | None = None,
    ) -> tuple[Validation, ...]:
        """At most `limit` validations, newest first."""
        query = select(VALIDATIONS).order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id).limit(limit)
        for name, value in {"plan_id": plan_id, "state": state and state.value, "gpu": gpu}.items():
            if value is not None:
                query = query.where(VALIDATIONS.c[name] == label(value))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(_validation(row) for row in rows)

    def counts(self) -> dict[ValidationState, int]:
        """How many validations that are still remembered are in each state."""
        query = select(VALIDATIONS.c.state, func.count()).group_by(VALIDATIONS.c.state)
        with self._database.reading() as connection:
            return {ValidationState(state): count for state, count in connection.execute(query)}

    def errors(self, limit: int = 1000) -> dict[tuple[str, str], tuple[float, ...]]:
        """Errors in percent of the newest validations, by GPU and torch; the newest first."""
        query = (
            select(VALIDATIONS.c.gpu, VALIDATIONS.c.torch, VALIDATIONS.c.error_percent)
            .where(VALIDATIONS.c.state == ValidationState.DONE.value, VALIDATIONS.c.error_percent.is_not(None))
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
        validation_id=row.validation_id, plan_id=row.plan_id, state=ValidationState(row.state), asked_at=row.asked_at,
        mode=row.mode, gpu=row.gpu, torch=row.torch, finished_at=row.finished_at, out_of_memory=row.out_of_memory,
        error_percent=row.error_percent, result=json.loads(row.result), problem=row.problem,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibration:
    """A calibration as the JSON object that it was stored as, and from how many measurements it was learnt."""

    calibration_id: str
    stored_at: datetime
    measurements: int
    document: Mapping[str, Any]


class Calibrations:
    """What was learnt."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, calibration_id: str, document: Mapping[str, Any], measurements: int = 0) -> None:
        """Store the calibration and make it the current one; again is the same as once."""
        row = {
            "calibration_id": checked_name(calibration_id, "calibration_id"),
            "stored_at": self._now(),
            "measurements": measurements,
            "document": compact_json(document),
        }
        with self._database.writing() as connection:
            put(connection, CALIBRATIONS, row)

    def get(self, calibration_id: str) -> StoredCalibration | None:
        """The calibration of that id; None if there is none."""
        query = select(CALIBRATIONS).where(CALIBRATIONS.c.calibration_id == label(calibration_id))
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        return None if found is None else _read_row(found)

    def current(self) -> StoredCalibration | None:
        """The one that was put last; None if nothing was learnt yet."""
        return next(iter(self.newest(1)), None)

    def newest(self, limit: int = 100) -> tuple[StoredCalibration, ...]:
        """At most `limit` calibrations, the current one first."""
        order = (CALIBRATIONS.c.stored_at.desc(), CALIBRATIONS.c.calibration_id)
        with self._database.reading() as connection:
            rows = connection.execute(select(CALIBRATIONS).order_by(*order).limit(limit)).all()
        return tuple(_read_row(row) for row in rows)


def _read_row(row: Row[Any]) -> StoredCalibration:
    return StoredCalibration(
        calibration_id=row.calibration_id,
        stored_at=row.stored_at,
        measurements=row.measurements,
        document=json.loads(row.document),
    )

"""Stores checks, searches, validations and calibrations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from planner.job.masking import mask_json, mask_text
from planner.report.statement import Verdict
from planner.service.history.counters import add, observe_value
from planner.service.history.database import Store, put, read_record, to_row, upsert
from planner.service.history.errors import checked_label, checked_name, label
from planner.service.history.schema import CALIBRATIONS, CHECKS, SEARCHES, VALIDATIONS

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
    name: str = ""
    team: str = ""
    queue: str = ""


class Checks(Store):
    def put(self, check: Check) -> None:
        """Store the check, or its verdict when it is known; a verdict is never forgotten again."""
        checked_name(check.check_id, "check_id")
        checked_label(check.plan_id, "plan_id")
        labels = {name: label(getattr(check, name)) for name in ("system", "name", "team", "queue")}
        row = to_row(check, verdict="" if check.verdict is None else check.verdict.value, **labels)
        with self._database.writing() as connection:
            statement = upsert(connection, CHECKS, row)
            later = {"plan_id": row["plan_id"], "verdict": row["verdict"]}
            unanswered = CHECKS.c.verdict == ""
            answered = statement.on_conflict_do_update(index_elements=["check_id"], set_=later, where=unanswered)
            # A verdict counts when it is first stored, and once: in the transaction that stores it.
            stored = connection.execute(answered.returning(CHECKS.c.check_id)).first()
            if stored is not None and check.verdict is not None:
                add(connection, {(VERDICTS, (("verdict", check.verdict.value),)): 1})

    def counts(self) -> dict[Verdict | None, int]:
        query = select(CHECKS.c.verdict, func.count()).group_by(CHECKS.c.verdict)
        return {Verdict(verdict) if verdict else None: count for verdict, count in self._read(query)}


class SearchState(StrEnum):
    """How far a search is. STOPPED: it ended before its end, and goes on where it was when it is asked for again.
    REFUSED: its space is empty, or what is asked does not go together."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    REFUSED = "refused"


CANCELLED, INTERRUPTED = "cancelled", "interrupted"
"""Why a search is STOPPED: somebody asked for it, or the service that ran it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search. `request` is what has to be known to run it again, `document` what it says of itself."""

    search_id: str
    state: SearchState
    asked_at: datetime
    finished_at: datetime | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        return self.state in (SearchState.PENDING, SearchState.RUNNING)

    @property
    def is_cancelled(self) -> bool:
        return self.state is SearchState.STOPPED and self.document.get("stopped") == CANCELLED


class Searches(Store):
    """What was searched for. Replicas that run searches write; any that shares the database may cancel one."""

    def put(self, search: Search, answers: Mapping[str, Any] | None = None, *, unless_cancelled: bool = False) -> bool:
        """Store the search as it now is; without `answers` those that are there stay. Whether it was stored: with
        `unless_cancelled` one that somebody cancelled stays so."""
        checked_name(search.search_id, "search_id")
        # As it was asked for it is there as long as it may have to be run again.
        request = search.request if search.goes_on else mask_json(search.request)
        document, answered = mask_json(search.document), mask_json(answers or {})
        row = to_row(search, request=request, document=document, answers=answered)
        kept = ("search_id",) if answers is not None else ("search_id", "answers")
        changes = {name: value for name, value in row.items() if name not in kept}
        with self._database.writing() as connection:
            stored = _locked(connection, search.search_id) if unless_cancelled else None
            if stored is not None and stored.is_cancelled:
                return False
            statement = upsert(connection, SEARCHES, row)
            connection.execute(statement.on_conflict_do_update(index_elements=["search_id"], set_=changes))
        return True

    def cancel(self, search_id: str) -> Search | None:
        """The search, which is cancelled if it was not over; None if there is none. Whoever runs it, at any service, is
        told when it stores how far it is: one that a service found interrupted may still be run by another."""
        with self._database.writing() as connection:
            search = _locked(connection, label(search_id))
            if search is None or not (search.goes_on or search.document.get("stopped") == INTERRUPTED):
                return search
            ended: dict[str, Any] = {
                "state": SearchState.STOPPED, "finished_at": self._now(),
                "document": {**search.document, "stopped": CANCELLED},
            }  # fmt: skip
            connection.execute(update(SEARCHES).where(SEARCHES.c.search_id == search.search_id).values(ended))
        return replace(search, **ended)

    def get(self, search_id: str) -> Search | None:
        row = self._read_one(_SEARCHES.where(SEARCHES.c.search_id == label(search_id)))
        return None if row is None else _search(row)

    def answers(self, search_id: str) -> dict[str, Any]:
        """What plans said of its candidates, by a name that the runner gives them."""
        row = self._read_one(select(SEARCHES.c.answers).where(SEARCHES.c.search_id == label(search_id)))
        return {} if row is None else dict(row.answers)

    def in_state(self, state: SearchState, limit: int) -> tuple[Search, ...]:
        query = _SEARCHES.where(SEARCHES.c.state == state.value).order_by(SEARCHES.c.asked_at).limit(limit)
        return tuple(_search(row) for row in self._read(query))


_SEARCHES = select(*(column for column in SEARCHES.c if column.name != "answers"))


def _locked(connection: Connection, search_id: str) -> Search | None:
    row = connection.execute(_SEARCHES.where(SEARCHES.c.search_id == search_id).with_for_update()).first()
    return None if row is None else _search(row)


def _search(row: Row[Any]) -> Search:
    return read_record(Search, row, state=SearchState(row.state))


ERRORS = "validation_error"
"""The distribution of errors, as a ratio, by GPU and torch: unlike the validations, it is never forgotten."""
ERROR_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_SHORT = 60


NO_GPU = "cpu"
"""What stands in the place of the GPU of a validation that ran on a CPU."""


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


class Validations(Store):
    def put(self, validation: Validation) -> None:
        """Store the validation as it now is; one that has ended is not changed by a late writer."""
        checked_name(validation.validation_id, "validation_id")
        checked_label(validation.plan_id, "plan_id")
        names = {name: label(getattr(validation, name)) for name in ("mode", "gpu", "torch")}
        # NUL is the one character that a text of PostgreSQL cannot have.
        problem = mask_text(validation.problem.encode("utf-8", "replace").decode().replace("\0", " "))
        # What was asked for is there as it came as long as it may have to be run.
        result = mask_json(validation.result) if validation.state.final else validation.result
        row = to_row(validation, state=validation.state.value, problem=problem, result=result, **names)
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
        query = select(VALIDATIONS).where(VALIDATIONS.c.validation_id == label(validation_id))
        row = self._read_one(query)
        return None if row is None else _validation(row)

    def newest(
        self,
        limit: int = 100,
        *,
        plan_id: str | None = None,
        state: ValidationState | None = None,
        gpu: str | None = None,
    ) -> tuple[Validation, ...]:
        query = select(VALIDATIONS).order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id).limit(limit)
        for name, value in {"plan_id": plan_id, "state": state and state.value, "gpu": gpu}.items():
            if value is not None:
                query = query.where(VALIDATIONS.c[name] == label(value))
        return tuple(_validation(row) for row in self._read(query))

    def measured(self, limit: int) -> tuple[str, ...]:
        query = (
            select(VALIDATIONS.c.validation_id)
            .where(VALIDATIONS.c.state == ValidationState.DONE.value, VALIDATIONS.c.gpu.not_in(("", NO_GPU)))
            .order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return tuple(connection.execute(query).scalars())

    def counts(self) -> dict[ValidationState, int]:
        query = select(VALIDATIONS.c.state, func.count()).group_by(VALIDATIONS.c.state)
        return {ValidationState(state): count for state, count in self._read(query)}

    def errors(self, limit: int = 1000) -> dict[tuple[str, str], tuple[float, ...]]:
        query = (
            select(VALIDATIONS.c.gpu, VALIDATIONS.c.torch, VALIDATIONS.c.error_percent)
            .where(VALIDATIONS.c.state == ValidationState.DONE.value, VALIDATIONS.c.error_percent.is_not(None))
            .order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id)
            .limit(limit)
        )
        errors: dict[tuple[str, str], list[float]] = defaultdict(list)
        for gpu, torch, error in self._read(query):
            errors[gpu, torch].append(error)
        return {group: tuple(of_group) for group, of_group in errors.items()}


def _validation(row: Row[Any]) -> Validation:
    return read_record(Validation, row, state=ValidationState(row.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibration:
    """A calibration as the JSON object that it was stored as, and from how many measurements it was learnt."""

    calibration_id: str
    stored_at: datetime
    measurements: int
    document: Mapping[str, Any]


class Calibrations(Store):
    def put(self, calibration_id: str, document: Mapping[str, Any], measurements: int = 0) -> None:
        """Store the calibration and make it the current one; again is the same as once."""
        checked_name(calibration_id, "calibration_id")
        stored = StoredCalibration(
            calibration_id=calibration_id, stored_at=self._now(), measurements=measurements, document=document
        )
        with self._database.writing() as connection:
            put(connection, CALIBRATIONS, to_row(stored))

    def current(self) -> StoredCalibration | None:
        return next(iter(self.newest(1)), None)

    def newest(self, limit: int = 100) -> tuple[StoredCalibration, ...]:
        order = (CALIBRATIONS.c.stored_at.desc(), CALIBRATIONS.c.calibration_id)
        rows = self._read(select(CALIBRATIONS).order_by(*order).limit(limit))
        return tuple(read_record(StoredCalibration, row) for row in rows)

"""A database of any earlier schema comes up with all that it held; one of a later schema is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import insert, select

from planner.report.statement import Plan, Verdict, to_json
from planner.service.history import database as database_module
from planner.service.history import schema
from planner.service.history.counters import SharedFigures
from planner.service.history.database import Database, migrate
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.job_table import JobChange
from planner.service.history.records import Check, Validation, ValidationState
from planner.service.history.schema import compact_json
from planner.service.history.store import History
from planner.units import GIB

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def of_first_schema(url: str, plan: Plan) -> None:
    """A database as the first schema had it, with one plan in it."""
    database = Database(database_module._engine(database_module._parse_url(url)))
    with database.writing() as connection:
        migrate(connection, "here", "0001")
        row = {
            "plan_id": plan.plan_id, "trace_id": plan.trace_id, "stored_at": NOW, "used_at": NOW, "verdict": "fits",
            "calibrated": False, "advised": False, "name": "", "team": "nlp", "queue": "", "gpu": "H100", "ranks": 8,
            "requested_bytes": 80, "predicted_bytes": 40,
        }  # fmt: skip
        connection.execute(insert(schema.PLANS).values(row))
        document = compact_json(to_json(plan))
        connection.execute(insert(schema.PLAN_DOCUMENTS).values(plan_id=plan.plan_id, document=document))
    database.close()


def of_previous_schema(url: str, plan: Plan) -> None:
    """A database as the schema before this one had it, with a plan, a job, a check, a validation, a calibration."""
    of_first_schema(url, plan)
    database = Database(database_module._engine(database_module._parse_url(url)))
    with database.writing() as connection:
        migrate(connection, "here", "0002")
        named = {"system": "ray", "team": "nlp", "queue": ""}
        job = {"job_id": "a", "plan_id": plan.plan_id, "hosts": ["n1"], "gpu_uuids": [], "outcome": ""}
        connection.execute(insert(schema.JOBS).values(updated_at=NOW, **named, **job))
        check = {"check_id": "c", "plan_id": plan.plan_id, "asked_at": NOW, "verdict": "fits", "name": ""}
        connection.execute(insert(schema.CHECKS).values(**named, **check))
        validation = {"validation_id": "v", "plan_id": plan.plan_id, "state": "done", "asked_at": NOW, "mode": "step"}
        more = {"gpu": "H100", "torch": "2.13.0", "error_percent": 1.5, "result": {}, "problem": ""}
        connection.execute(insert(schema.VALIDATIONS).values(**validation, **more))
        calibration = {"calibration_id": "abc", "stored_at": NOW, "measurements": 3, "document": {}}
        connection.execute(insert(schema.CALIBRATIONS).values(calibration))
    database.close()


def version(history: History) -> str:
    with history._database.reading() as connection:
        return str(connection.exec_driver_sql(f"SELECT version_num FROM {schema.VERSION_TABLE}").scalar_one())


def test_an_empty_database_gets_the_tables_of_the_schema_and_no_others(shared_url: str) -> None:
    with History.open(shared_url) as history, history._database.reading() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)

        assert compare_metadata(context, schema.METADATA) == []


def test_a_database_of_the_first_schema_keeps_its_plans_and_gets_the_rest(
    shared_url: str, plan: Callable[..., Plan]
) -> None:
    of_first_schema(shared_url, plan())
    validation = Validation(validation_id="v", plan_id=plan().plan_id, state=ValidationState.PENDING, asked_at=NOW)

    with History.open(shared_url) as history:
        assert version(history) == "0009"
        assert history.plans.document(plan().plan_id) == to_json(plan())
        history.jobs.bind("ray", "a", JobChange(plan_id=plan().plan_id))
        history.validations.put(validation)

    with History.open(shared_url) as history:
        assert history.validations.get("v") == validation
        assert [job.job_id for job in history.jobs.open()] == ["a"]


def test_a_database_of_the_previous_schema_keeps_all_that_it_held_and_can_count(
    shared_url: str, plan: Callable[..., Plan]
) -> None:
    of_previous_schema(shared_url, plan())

    with History.open(shared_url) as history:
        assert version(history) == "0009"
        assert [job.hosts for job in history.jobs.open()] == [("n1",)]
        assert history.checks.counts() == {Verdict.FITS: 1}
        assert history.validations.errors() == {("H100", "2.13.0"): (1.5,)}
        current = history.calibrations.current()
        assert current is not None
        assert (current.calibration_id, current.measurements) == ("abc", 3)
        assert history.totals.figures() == SharedFigures()  # what was before the counting began is not made up

        history.checks.put(Check(check_id="d", plan_id=plan().plan_id, asked_at=NOW, verdict=Verdict.TIGHT))

        assert history.totals.figures().totals == {("verdicts", (("verdict", "tight"),)): 1}


def test_shares_of_gpus_are_those_of_the_documents_of_plans_that_were_there(
    shared_url: str, plan: Callable[..., Plan]
) -> None:
    made = plan()
    of_previous_schema(
        shared_url, replace(made, job={**made.job, "cluster": {**made.job["cluster"], "gpu_memory": 20 * GIB}})
    )

    with History.open(shared_url) as history:
        assert [row.gpus for row in history.capacity()] == [8 / 4]
        names = ("gpu_memory", "gpu_fraction", "held_by_others_bytes")
        with history._database.reading() as connection:
            (row,) = connection.execute(select(*(schema.PLANS.c[name] for name in names)))
    assert tuple(row) == (20 * GIB, 1, 0)


def test_a_schema_newer_than_this_planner_is_refused_and_left_as_it_is(shared_url: str) -> None:
    with History.open(shared_url) as history, history._database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")

    with pytest.raises(HistoryUnavailableError, match="its schema 9999 is newer than this planner") as refused:
        History.open(shared_url)

    assert refused.value.allowed == "0001, 0002, 0003, 0004, 0005, 0006, 0007, 0008, 0009"
    with Database(database_module._engine(database_module._parse_url(shared_url))).reading() as connection:
        assert connection.exec_driver_sql(f"SELECT version_num FROM {schema.VERSION_TABLE}").scalar_one() == "9999"


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    shared_url: str, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_first_schema(shared_url, plan())
    real = database_module.migrate

    def fails_at_the_end(connection: Any, place: str) -> None:
        real(connection, place)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(database_module, "migrate", fails_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            History.open(shared_url)

    other = Database(database_module._engine(database_module._parse_url(shared_url)))
    with other.reading() as connection:
        assert connection.exec_driver_sql(f"SELECT version_num FROM {schema.VERSION_TABLE}").scalar_one() == "0001"
        assert not connection.dialect.has_table(connection, "validations")
    other.close()
    with History.open(shared_url) as history:
        assert version(history) == "0009"


def test_the_file_is_in_wal_mode(tmp_path: Path) -> None:
    with History.open(f"sqlite:///{tmp_path}/history.db") as history, history._database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1

"""Secrets of tenants are in nothing that the service keeps or shows, nor in what an older one kept."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filled_history import make_plan

from planner.errors import PlannerError
from planner.report.statement import Plan, Verdict, to_json
from planner.service.history.job_table import JobChange, Outcome
from planner.service.history.plan_table import Failure
from planner.service.history.records import Check, Search, SearchState, Validation, ValidationState
from planner.service.history.schema import METADATA, PLAN_DOCUMENTS, VERSION_TABLE, compact_json
from planner.service.history.store import History
from planner.service.http.problems import problem
from planner.service.logs import JsonLines
from planner.truth.failures.messages import Cause

CANARY = "canary-of-this-test"
TEXT = f"opening postgres://me:{CANARY}@host/db with --hub-token {CANARY}, password={CANARY}"
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def everything(history: History) -> str:
    """All that the database holds, as its columns read it."""
    with history._database.reading() as connection:
        return "\n".join(
            str(tuple(row)) for table in METADATA.sorted_tables for row in connection.execute(table.select())
        )


def run_of_a_program() -> Plan:
    plan = make_plan()
    return Plan(
        plan_id="pl-" + "r" * 26, trace_id="run-1", calibrated=False, rank_classes=plan.rank_classes, host=plan.host,
        provenance=plan.provenance, command=("env", f"MY_LOGIN={CANARY}", "python", "t.py"), gpu="H100-SXM-80GB",
        nodes=1, gpus_per_node=4, ending=f"ValueError: {CANARY} is wrong", iterations=3, seen={}, unseen=(),
        allocator_conf="", assumptions=(), out_of_memory=(),
    )  # fmt: skip


def fill(history: History) -> None:
    plan = make_plan(name=TEXT)
    job = {**plan.job, "model": {"factory_arguments": {"hf_token": CANARY}}}
    history.plans.put(replace(plan, job=job))
    change = JobChange(
        plan_id=plan.plan_id, team=TEXT, outcome=Outcome.OUT_OF_MEMORY, cause=Cause.UNKNOWN, failure=TEXT,
        reports={0: {"rank": 0, "out_of_memory": TEXT}},
    )  # fmt: skip
    history.jobs.bind("slurm", "1", change)
    history.failures.put(
        Failure(plan_id="pl-failed", kind="TraceError", problem=TEXT, place=TEXT, trace_seconds=1, trace_memory_bytes=1)
    )
    history.checks.put(Check(check_id="c", plan_id=plan.plan_id, asked_at=NOW, name=TEXT, verdict=Verdict.FITS))
    history.validations.put(
        Validation(
            validation_id="v",
            plan_id=plan.plan_id,
            state=ValidationState.FAILED,
            asked_at=NOW,
            problem=TEXT,
            result={"request": {"job": job}},
        )
    )
    history.searches.put(
        Search(search_id="s", state=SearchState.DONE, asked_at=NOW, request={"job": job}, document={"problem": TEXT}),
        {"a": {"text": TEXT}},
    )


def test_no_text_of_a_tenant_is_stored_with_its_secrets(history: History) -> None:
    fill(history)

    assert CANARY not in everything(history)
    assert "postgres://***@host/db with --hub-token ***, password=***" in everything(history)


def test_a_search_that_goes_on_keeps_what_it_has_to_be_run_with_and_does_not_show_it(history: History) -> None:
    request = {"job": {"model": {"factory_arguments": {"hf_token": CANARY}}}}
    search = Search(search_id="s", state=SearchState.RUNNING, asked_at=NOW, request=request, document={"a": TEXT})

    history.searches.put(search)

    stored = history.searches.get("s")
    assert stored is not None
    assert (stored.request, CANARY in str(stored.document)) == (request, False)


def test_a_plan_whose_job_is_masked_is_not_validated_by_its_id(asgi: Any, history: History) -> None:
    plan = make_plan()
    job = {**plan.job, "model": {"factory_arguments": {"hf_token": CANARY}}}
    history.plans.put(replace(plan, job=job))

    answer = asgi().post("/v1/validations", json={"plan_id": plan.plan_id})

    assert (answer.status_code, answer.json()["place"]) == (422, "plan_id")
    assert answer.json()["problem"] == f"the job of {plan.plan_id} has masked secrets, and does not run without them"


def test_what_an_older_planner_stored_is_masked_by_the_migration(tmp_path: Path) -> None:
    url, run, plan = f"sqlite:///{tmp_path}/history.db", run_of_a_program(), make_plan()
    with History.open(url) as history:
        history.plans.put(run)
        fill(history)
        text = compact_json(to_json(run)), compact_json({**to_json(plan), "job": {**plan.job, "token": CANARY}})
        with history._database.writing() as connection:
            for plan_id, document in zip((run.plan_id, plan.plan_id), text, strict=True):
                changed = PLAN_DOCUMENTS.update().where(PLAN_DOCUMENTS.c.plan_id == plan_id)
                connection.execute(changed.values(document=document))
            connection.exec_driver_sql("UPDATE failures SET problem = ?", (TEXT,))
            connection.exec_driver_sql("UPDATE jobs SET failure = ?, team = ?", (TEXT, TEXT))
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = 'initial'")
        before = everything(history)
        before = everything(history)
        assert f"MY_LOGIN={CANARY}" in before
        assert f'"token":"{CANARY}"' in before
        assert before.count(f"password={CANARY}") == 3  # a failure, and the failure and the team of a job

    with History.open(url) as history:
        assert CANARY not in everything(history)
        document = history.plans.document(run.plan_id)
        assert document is not None
        assert document["command"] == ["env", "MY_LOGIN=***", "python", "t.py"]
        assert document["ending"] == "ValueError: *** is wrong"
        assert json.loads(compact_json(to_json(run)))["rank_classes"] == document["rank_classes"]
    assert all(CANARY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_neither_a_problem_nor_a_line_of_the_log_has_them() -> None:
    line = JsonLines().format(logging.LogRecord("planner", logging.INFO, "", 1, "said %s", (TEXT,), None))
    answer = problem(PlannerError(TEXT, allowed=TEXT, remedy=TEXT, place=TEXT)).body

    assert json.loads(line)["message"].startswith("said opening postgres://***@host/db")
    assert CANARY not in line
    assert CANARY.encode() not in bytes(answer)

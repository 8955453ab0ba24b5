"""What people write reaches the database as values: no text of theirs is ever a part of a statement."""

from __future__ import annotations

import ast
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from planner.report.statement import Plan
from planner.service import history
from planner.service.history.store import History

HOSTILE = ("' OR '1'='1", "'; DROP TABLE plans; --", '" OR ""="', "%", "_", "\\", "nlp' --", "nlp') UNION SELECT 1 --")
ROOM = Path(history.__file__).parent
RUNS = ("execute", "exec_driver_sql", "text", "executescript")


@pytest.mark.parametrize("written", HOSTILE)
def test_a_filter_is_a_value(client: TestClient, stored: Plan, written: str) -> None:
    for name in ("team", "queue", "verdict"):
        assert client.get("/v1/plans", params={name: written}).json().get("plans", []) == []
    assert client.get(f"/v1/plans/{written}").status_code == 404
    assert [each["plan_id"] for each in client.get("/v1/plans").json()["plans"]] == [stored.plan_id]


@pytest.mark.parametrize("written", HOSTILE)
def test_a_name_is_stored_as_it_was_written(
    client: TestClient, stored: Plan, tokens: tuple[str, ...], written: str
) -> None:
    told = {"plan_id": stored.plan_id, "team": written, "queue": written, "hosts": [written]}
    headers = {"Authorization": f"Bearer {tokens[0]}"}

    path = f"/v1/jobs/slurm/{quote(written, safe='')}"
    answer = client.put(path, json=told, headers=headers)
    found = client.get(path).json()

    assert answer.status_code == 200, answer.text
    assert (found["id"], found["team"], found["queue"], found["hosts"]) == (written, written, written, [written])
    assert client.get("/v1/plans").json()["plans"]


def test_no_statement_of_the_history_is_put_together_from_texts() -> None:
    """Statements are SQLAlchemy's expressions, or constants: never an f-string, a sum, or a format."""
    found = [
        f"{path.name}:{call.lineno}"
        for path in ROOM.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _name(call) in RUNS and call.args and _is_put_together(call.args[0])
    ]

    assert found == []


@pytest.mark.parametrize(
    "bad",
    ['run(f"SELECT {x}")', 'run("SELECT " + x)', 'run("a %s" % x)', 'run("{}".format(x))', 'run(f"{x}" if y else z)'],
)
def test_a_statement_put_together_would_be_seen(bad: str) -> None:
    call = ast.parse(bad, mode="eval").body

    assert isinstance(call, ast.Call)
    assert _is_put_together(call.args[0])


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _is_put_together(statement: ast.expr) -> bool:
    if isinstance(statement, ast.IfExp):
        return _is_put_together(statement.body) or _is_put_together(statement.orelse)
    formats = isinstance(statement, ast.Call) and _name(statement) == "format"
    return formats or isinstance(statement, ast.JoinedStr | ast.BinOp)


@pytest.mark.usefixtures("stored")
def test_a_question_about_capacity_changes_nothing(client: TestClient, history: History) -> None:
    answers = {client.get("/v1/capacity", params={"on": each, "since": each}).status_code for each in HOSTILE}
    with history.plans._database.reading() as connection:
        plans = connection.execute(text("SELECT count(*) FROM plans")).scalar_one()

    assert (answers, plans) == ({422}, 1)

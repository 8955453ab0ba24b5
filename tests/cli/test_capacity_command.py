"""planner capacity: what a service answers, as text and as JSON, on an install without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from filled_history import fill_history, make_plan
from scraped import exporting, serving

from planner.admission.client import moment
from planner.cli import main
from planner.report.capacity_text import render_capacity
from planner.service.history.counters import Counters
from planner.service.history.job_table import JobChange
from planner.service.history.store import History

TABLE = """\
team    queue  gpu            jobs  gpus   asked for   predicted    headroom  measured (of GPUs)  wrong/judged  out of memory
nlp     q      H100-SXM-80GB     1     4  320.00 GiB  158.00 GiB  162.00 GiB  77.00 GiB (2 of 4)           1/1          1 gpu
vision  q2     H100-SXM-80GB     1     1   80.00 GiB   40.00 GiB   40.00 GiB                   -             -              -
all                              2     5  400.00 GiB  198.00 GiB  202.00 GiB  77.00 GiB (2 of 5)           1/1          1 gpu

Main memory of their nodes: at least 1.17 TiB of 1.56 TiB
"""  # noqa: E501
WHAT_IF = """\

On A100-SXM-40GB (39.39 GiB): 0 fits (0 GPUs), 2 tight (5 GPUs), 0 exceeds (0 GPUs)
verdict  job         name   planned for    ranks   at least  at most (95 %)
tight    ray/w       llama  H100-SXM-80GB      1  39.00 GiB       41.00 GiB
tight    slurm/4711  llama  H100-SXM-80GB      4  39.00 GiB       41.00 GiB

What waits needs
queue  gpu            jobs  gpus
q2     A100-SXM-40GB     1     1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job that runs and one that waits, in another queue."""
    folder = tmp_path_factory.mktemp("capacity")
    with History.open(f"sqlite:///{folder}/history.db") as history, fill_history(history) as counters:
        waiting = make_plan(3, classes=("0",), team="vision", queue="q2")
        history.plans.put(waiting)
        history.jobs.bind("ray", "w", JobChange(plan_id=waiting.plan_id))
        with serving(history, counters) as port:
            yield f"http://127.0.0.1:{port}"


def test_capacity_by_group_and_in_all(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--server", server]) == 0

    assert capsys.readouterr().out == TABLE


def test_what_would_be(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--server", server, "--on", "A100-SXM-40GB"]) == 0

    assert capsys.readouterr().out == TABLE + WHAT_IF


def test_json_is_what_the_service_says(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--server", server, "--format", "json", "--since", "30d"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["totals"]["jobs"]) == ("planner.capacity/1", 2)
    assert datetime.now(UTC) - datetime.fromisoformat(found["since"]) < timedelta(days=30, minutes=1)


def test_it_needs_neither_torch_nor_what_the_service_needs(server: str) -> None:
    program = (
        "import sys; from planner.cli import main\n"
        f"assert main(['capacity', '--server', {server!r}]) == 0\n"
        "assert not {'torch', 'ray', 'sqlalchemy', 'pydantic', 'httpx'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "H100-SXM-8GB"], "there is no GPU `H100-SXM-8GB` in the catalog"),
        (["--since", "yesterday"], "`yesterday` is not a time"),
        (["--since", "2026-01-31T12:00:00"], "the moment has no time zone"),
        (["--timeout", "inf"], "this is not a time to wait"),
    ],
)
def test_questions_that_make_no_sense(
    server: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["capacity", "--server", server, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_nobody_to_ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_SERVER", raising=False)
    assert main(["capacity"]) == 2
    assert "no planner service is named" in capsys.readouterr().err

    assert main(["capacity", "--server", "file:///etc/passwd"]) == 2
    assert "http:// or https://" in capsys.readouterr().err

    assert main(["capacity", "--server", "http://127.0.0.1:9", "--timeout", "2"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_somebody_else_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with exporting('{"schema": "something.else/1"}') as port:
        assert main(["capacity", "--server", f"http://127.0.0.1:{port}"]) == 2
    assert "something else than its capacity" in capsys.readouterr().err


def test_times_before_now() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    assert moment("30d", now) == now - timedelta(days=30)
    assert moment("12h", now) == now - timedelta(hours=12)
    assert moment("4w", now) == now - timedelta(weeks=4)
    assert moment("2026-01-01T00:00:00+01:00", now) == datetime(2025, 12, 31, 23, tzinfo=UTC)


def test_names_do_not_steer_a_terminal() -> None:
    waiting = {"queue": "\x1b[2Jq", "gpu": "", "jobs": 1, "gpus": 8}

    assert render_capacity({"rows": [], "totals": {}, "needs": [waiting]}).splitlines()[-1] == (
        "?[2Jq  none of these     1     8"
    )


def test_an_empty_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        History.open(f"sqlite:///{tmp_path}/history.db") as history,
        Counters(history.totals) as counters,
        serving(history, counters) as port,
    ):
        assert main(["capacity", "--server", f"http://127.0.0.1:{port}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no job is bound to a plan")
    assert "planner check JOB.yaml --server $PLANNER_SERVER -- COMMAND" in shown
    assert "PUT $PLANNER_SERVER/v1/jobs/SYSTEM/ID" in shown

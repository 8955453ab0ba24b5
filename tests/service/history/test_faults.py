"""What a person is told when the database is not as it should be, and that nothing is then half stored."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event
from stored import get_traces, put_traces

from planner.report.statement import Plan, to_json
from planner.service.history.database import Writability
from planner.service.history.errors import HistoryError, HistoryUnavailableError
from planner.service.history.store import History
from planner.tracing.rank_trace import Trace


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB; skips where none may be made."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "planner-test", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if made.returncode != 0:
        pytest.skip(f"no disk can be made here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=300, check=True)


@pytest.mark.parametrize(
    "url", ["", "history.db", "mysql://host/name", "sqlite+aiosqlite:///a", "postgresql+pg8000:///"]
)
def test_a_url_that_cannot_be_used_says_what_can(url: str) -> None:
    with pytest.raises(HistoryError) as refused:
        History.open(url)

    assert not isinstance(refused.value, HistoryUnavailableError)
    assert "sqlite:///FILE" in refused.value.allowed


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")

    with pytest.raises(HistoryUnavailableError) as refused:
        History.open("postgresql://planner:secret@127.0.0.1:1/history")

    assert refused.value.place == "postgresql+psycopg://planner:***@127.0.0.1:1/history"
    assert "secret" not in str(refused.value)
    assert "see that it runs" in refused.value.remedy


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailableError, match="it cannot be opened"):
        History.open(f"sqlite:///{tmp_path}/missing/history.db")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_text("plans, all of them" * 100)

    with pytest.raises(HistoryUnavailableError, match="the file is not an SQLite database"):
        History.open(f"sqlite:///{tmp_path}/history.db")


def test_a_full_disk_is_said_and_nothing_is_half_stored(tmp_path: Path, plan: Callable[..., Plan]) -> None:
    with History.open(f"sqlite:///{tmp_path}/history.db") as history:
        history.plans.put(plan(1))

        def is_full(connection: Any, *_: object) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + 4}")

        event.listen(history._database._engine, "checkout", is_full)
        incompressible = {**plan(2).job, "noise": os.urandom(100_000).hex()}
        too_big = replace(plan(2), job=incompressible)

        with pytest.raises(HistoryUnavailableError, match="its disk is full"):
            history.plans.put(too_big)

        assert [each.plan_id for each in history.plans.newest()] == [plan(1).plan_id]
        assert history.plans.document(plan(1).plan_id) == to_json(plan(1))
        assert history.plans.rank_classes(plan(2).plan_id) == ()

        event.remove(history._database._engine, "checkout", is_full)
        history.close()  # its connections remember how full the disk was
        history.plans.put(too_big)

        assert len(history.plans.newest()) == 2


def test_a_disk_without_room_for_a_plan_is_found_out_by_a_probe(disk: Path, plan: Callable[..., Plan]) -> None:
    with History.open(f"sqlite:///{disk}/history.db") as history:
        history.plans.put(plan(1))
        history.probe()
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

        history.plans.counts()
        with pytest.raises(HistoryUnavailableError, match="its disk is full"):
            Writability(history._database).probe()

        os.truncate(filler, filler.stat().st_size - 256 * 2**10)  # the probe's own write goes through
        with pytest.raises(HistoryUnavailableError, match="its disk has no room for a plan: No space left") as refused:
            Writability(history._database).probe()
        assert refused.value.place == f"sqlite:///{disk}/history.db"

        filler.unlink()
        Writability(history._database).probe()


def test_a_file_that_was_moved_away_is_neither_written_nor_made_anew(tmp_path: Path, plan: Callable[..., Plan]) -> None:
    file, away = tmp_path / "history.db", tmp_path / "away.db"
    with History.open(f"sqlite:///{file}") as history:
        history.plans.put(plan(1))
        history.probe()
        file.rename(away)

        for use in (history.probe, lambda: history.plans.put(plan(2)), history.plans.newest):
            with pytest.raises(HistoryUnavailableError, match="its file was moved or deleted") as refused:
                use()
        assert refused.value.place == f"sqlite:///{file}"
        assert not file.exists()

        away.rename(file)
        history.probe()
        assert [each.plan_id for each in history.plans.newest()] == [plan(1).plan_id]


def test_a_file_in_the_place_of_one_that_was_moved_away_is_the_history_from_then_on(
    tmp_path: Path, plan: Callable[..., Plan]
) -> None:
    file, other = tmp_path / "history.db", tmp_path / "other.db"
    for number, path in enumerate((file, other), 1):
        with History.open(f"sqlite:///{path}") as history:
            history.plans.put(plan(number))
    with History.open(f"sqlite:///{file}") as history:
        assert [each.plan_id for each in history.plans.newest()] == [plan(1).plan_id]
        file.rename(tmp_path / "away.db")
        other.rename(file)

        assert [each.plan_id for each in history.plans.newest()] == [plan(2).plan_id]
        history.plans.put(plan(3))

    with History.open(f"sqlite:///{file}") as history:
        assert {each.plan_id for each in history.plans.newest()} == {plan(2).plan_id, plan(3).plan_id}


def test_a_database_that_may_only_be_read_is_found_out_by_a_probe(shared_url: str) -> None:
    with History.open(shared_url) as history:
        history.probe()
        event.listen(history._database._engine, "begin", _read_only)

        history.plans.counts()
        with pytest.raises(HistoryUnavailableError):
            Writability(history._database).probe()


def test_probes_write_every_few_seconds_however_many_ask(shared_url: str) -> None:
    seconds = iter([0.0, 0.0, 1.0, 4.9, 5.1, 5.1])
    written: list[str] = []
    with History.open(shared_url) as history:
        event.listen(history._database._engine, "before_cursor_execute", lambda *said: written.append(said[2]))
        writability = Writability(history._database, now=lambda: next(seconds))
        for _ in range(4):
            writability.probe()

    assert sum(each.startswith("UPDATE") for each in written) == 2


def test_a_probe_does_not_wait_behind_writers_whose_writes_it_has_seen(
    tmp_path: Path, plan: Callable[..., Plan]
) -> None:
    clock, url = [0.0], f"sqlite:///{tmp_path}/history.db"
    with History.open(url) as history, History.open(url) as other:
        writability = Writability(history._database, now=lambda: clock[0])
        writability.probe()
        history.plans.put(plan(1))
        with history._database.reading() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 50")
        with other._database.writing():
            clock[0] = 6.0
            writability.probe()
            clock[0] = 12.0
            with pytest.raises(HistoryUnavailableError, match="other writers kept it locked"):
                writability.probe()  # nothing was written since


def _read_only(connection: Connection) -> None:
    in_sqlite = connection.dialect.name == "sqlite"
    connection.exec_driver_sql("PRAGMA query_only = ON" if in_sqlite else "SET TRANSACTION READ ONLY")


def test_a_database_that_others_lock_is_said_to_be_busy(tmp_path: Path, plan: Callable[..., Plan]) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    with History.open(url) as history, History.open(url) as other:
        history.plans.put(plan(1))
        with history._database.reading() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 50")
        with other._database.writing():
            assert len(history.plans.newest()) == 1  # readers do not wait for writers
            with pytest.raises(HistoryUnavailableError, match="other writers kept it locked"):
                history.plans.put(plan(2))
        history.plans.put(plan(2))
        assert len(history.plans.newest()) == 2


def test_what_is_stored_can_be_read_though_its_use_cannot_be_noted(
    tmp_path: Path, plan: Callable[..., Plan], clock: Any
) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    with History.open(url, clock) as history, History.open(url) as other:
        history.plans.put(plan())
        put_traces(history, "a" * 64, {0: Trace(events=())})
        with history._database.reading() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 50")
        clock.passes(days=1)

        with other._database.writing():
            assert history.plans.document(plan().plan_id) == to_json(plan())
            assert get_traces(history, "a" * 64) == {0: Trace(events=())}


def test_a_postgresql_that_was_stopped_is_used_again_when_it_is_back(
    postgresql: Any, plan: Callable[..., Plan]
) -> None:
    with History.open(postgresql.new_database()) as history:
        history.plans.put(plan(1))
        postgresql.stop()
        try:
            with pytest.raises(HistoryUnavailableError):
                history.plans.counts()
            with pytest.raises(HistoryUnavailableError):
                history.plans.put(plan(2))
        finally:
            postgresql.start()

        history.plans.counts()
        history.plans.put(plan(2))

        assert {each.plan_id for each in history.plans.newest()} == {plan(1).plan_id, plan(2).plan_id}


def test_a_trace_of_which_one_part_cannot_be_stored_is_not_stored(history: History) -> None:
    with pytest.raises(HistoryError):
        put_traces(history, "a" * 64, {0: Trace(events=()), 2**70: Trace(events=())})

    assert get_traces(history, "a" * 64) == {}

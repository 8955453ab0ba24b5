"""Opens one database by its URL: connections, transactions, and errors that say what to do."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Insert, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from planner.distribution import install_command
from planner.history.history_errors import HistoryError, translate_errors
from planner.history.migrating import is_current, migrate

BUSY_SECONDS = 10
"""How long a writer waits for others before it is told that the database is busy."""
CONNECT_SECONDS = 5
_WRITES = "planner_writes"
_IN_MEMORY = (None, "", ":memory:")
_ALLOWED = "sqlite:///FILE, sqlite:// (in memory), postgresql://USER:PASSWORD@HOST/NAME"


class Database:
    """Reads and writes as transactions. Safe to share among threads; each process opens its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = engine.execution_options(**{_WRITES: True})
        self.place = engine.url.render_as_string(hide_password=True)

    @classmethod
    def open(cls, url: str) -> Database:
        """The database at `url`, brought to this planner's schema.

        Raises HistoryError for a URL that cannot be used, HistoryUnavailableError for a database that cannot.
        """
        parsed = _parse_url(url)
        with translate_errors(parsed.render_as_string(hide_password=True)):
            database = cls(_engine(parsed))
        try:
            database._migrate()
        except BaseException:
            database.close()
            raise
        return database

    @property
    def file(self) -> Path | None:
        """The file of SQLite; None for what lies in memory or on a server."""
        url = self._engine.url
        in_file = url.get_backend_name() == "sqlite" and url.database not in _IN_MEMORY
        return Path(url.database) if in_file and url.database else None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees the database at one moment and changes nothing."""
        with translate_errors(self.place), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all of it is stored when the block ends, nothing if the block raises."""
        with translate_errors(self.place), self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give the connections back; a database in memory is gone with them."""
        self._engine.dispose()

    def _migrate(self) -> None:
        with self.reading() as connection:
            if is_current(connection, self.place):
                return
        with self.writing() as connection:
            migrate(connection, self.place)


def upsert(connection: Connection, table: Table, row: dict[str, Any]) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of `row` that can still be told what to do on conflict, in the words of the connection's database."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return make(table).values(row)


def put(connection: Connection, table: Table, row: dict[str, Any]) -> None:
    """Store the row, in the place of one with the same primary key."""
    keys = {column.name for column in table.primary_key}
    rest = {name: value for name, value in row.items() if name not in keys}
    connection.execute(upsert(connection, table, row).on_conflict_do_update(index_elements=sorted(keys), set_=rest))


def put_if_absent(connection: Connection, table: Table, row: dict[str, Any]) -> bool:
    """Store the row unless there is one with the same primary key; whether it was stored."""
    statement: Insert = upsert(connection, table, row).on_conflict_do_nothing()
    return connection.execute(statement).rowcount == 1


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as wrong:
        raise HistoryError("this is no database URL", allowed=_ALLOWED, place="database") from wrong
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite":
        return parsed
    raise HistoryError(f"{parsed.drivername!r} is no database that is supported", allowed=_ALLOWED, place="database")


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return _postgresql(url)
    in_memory = url.database in _IN_MEMORY
    # A database in memory is its one connection: whoever needs it waits until it is back.
    size: dict[str, Any] = {"pool_size": 1, "max_overflow": 0} if in_memory else {}
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_timeout=BUSY_SECONDS,
        connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        **size,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql(url: URL) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise HistoryError(
            "PostgreSQL needs psycopg, which is not installed", remedy=install_command("postgresql")
        ) from missing
    # A server that was stopped and is back is found out by the ping, not by the first request that fails.
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=BUSY_SECONDS,
        connect_args={"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 1000 * BUSY_SECONDS},
    )


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # BEGIN is said by _begin_sqlite, not guessed by the driver
    connection.execute("PRAGMA foreign_keys = ON")
    _write_ahead(connection)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """WAL, so that readers never wait. The switch itself does not heed the timeout when others open the file too."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as fault:
            if fault.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock at once: one that only finds out later that it writes could not wait for it any more."""
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

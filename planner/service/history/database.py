"""Opens one database by its URL: connections, migration to this schema, transactions, and whether it can be written."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import datetime, timedelta
from os.path import samestat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Insert,
    Row,
    Select,
    Table,
    column,
    create_engine,
    event,
    make_url,
    table,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from planner.distribution import install_command
from planner.service.history.errors import HistoryError, HistoryUnavailableError, translate_errors
from planner.service.history.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")
_Value = TypeVar("_Value")
_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x706C616E  # "plan": the advisory lock under which one of many processes migrates


def is_current(connection: Connection, place: str) -> bool:
    """Whether there is nothing to do. Raises HistoryUnavailableError for a schema that this planner does not know."""
    scripts = ScriptDirectory.from_config(_config())
    current = _current_version(connection)
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise HistoryUnavailableError(
            f"its schema {current} is not one of this planner: a newer one wrote it, or one before the first release",
            allowed=", ".join(sorted(known)),
            remedy="name a new database, or update this planner",
            place=place,
        )
    return current == scripts.get_current_head()


def migrate(connection: Connection, place: str) -> None:
    """Bring the database to the newest schema inside the transaction of `connection`: all of it or nothing."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if is_current(connection, place):
        return
    config = _config()
    config.attributes["connection"] = connection
    if _current_version(connection) is not None:
        command.upgrade(config, "head")
        return
    METADATA.create_all(connection, checkfirst=False)
    command.stamp(config, "head")


def _current_version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


BUSY_SECONDS = 10
"""How long a writer waits for others before it is told that the database is busy."""
CONNECT_SECONDS = 5
_WRITES = "planner_writes"
_IN_MEMORY = (None, "", ":memory:")
_ALLOWED = "sqlite:///FILE, sqlite:// (in memory), postgresql://USER:PASSWORD@HOST/NAME"


class Database:
    """Reads and writes as transactions. Safe to share among threads; each process opens its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.url = engine, engine.url
        self._writer = engine.execution_options(**{_WRITES: True})
        self.place = engine.url.render_as_string(hide_password=True)
        self.writes = 0
        """Transactions of this process that were stored; about as many, where threads count at the same moment."""

    @classmethod
    def open(cls, url: str) -> Database:
        """The database at `url`, brought to this planner's schema.

        Raises HistoryError for a URL that cannot be used, HistoryUnavailableError for a database that cannot.
        """
        parsed = _parse_url(url)
        with translate_errors(parsed.render_as_string(hide_password=True)):
            database = cls(_engine(parsed))
        try:
            with database.reading() as connection:
                current = is_current(connection, database.place)
            if not current:
                with database.writing() as connection:
                    migrate(connection, database.place)
        except BaseException:
            database.close()
            raise
        return database

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
        self.writes += 1

    def close(self) -> None:
        self._engine.dispose()


USE_IS_NOTED_EVERY = timedelta(hours=1)
"""A plan that is read ten times a second is not written ten times a second."""


class Store:
    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with self._database.reading() as connection:
            return connection.execute(query).all()

    def _read_one(self, query: Select[Any]) -> Any:
        return next(iter(self._read(query)), None)

    def _note_use(self, key: Column[Any], value: str, used_at: datetime) -> None:
        now = self._now()
        if now - used_at >= USE_IS_NOTED_EVERY:
            # Who reads is not refused because the disk is full or others write: the next reader notes it.
            with suppress(HistoryUnavailableError), self._database.writing() as connection:
                connection.execute(update(key.table).where(key == value).values(used_at=now))


def read_record(record: type[_Record], row: Row[Any], **converted: Any) -> _Record:
    """A dataclass from the columns that have the names of its fields; `converted` takes the place of some."""
    # By name: a row, being a tuple, has methods such as count.
    columns = {field.name: row._mapping[field.name] for field in fields(record) if field.name not in converted}
    return record(**columns, **converted)


def to_row(record: DataclassInstance, **converted: Any) -> dict[str, Any]:
    """The columns of a dataclass, the other way round."""
    return {field.name: getattr(record, field.name) for field in fields(record)} | converted


def batches(values: Sequence[_Value], size: int = 500) -> Iterator[Sequence[_Value]]:
    """As many at a time as any database takes as parameters of one query."""
    return (values[start : start + size] for start in range(0, len(values), size))


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
        raise HistoryError("this is not a database URL", allowed=_ALLOWED, place="database") from wrong
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite":
        return parsed
    raise HistoryError(f"{parsed.drivername!r} is not a supported database", allowed=_ALLOWED, place="database")


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        try:
            import psycopg  # noqa: F401
        except ImportError as missing:
            raise HistoryError(
                "PostgreSQL needs psycopg, which is not installed", remedy=install_command("postgresql")
            ) from missing
        # A server that was stopped and is back is found out by the ping, not by the first request that fails.
        timeouts = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 1000 * BUSY_SECONDS}
        return create_engine(url, pool_pre_ping=True, pool_timeout=BUSY_SECONDS, connect_args=timeouts)
    # A database in memory is its one connection: others wait until it is back.
    size: dict[str, Any] = {"pool_size": 1, "max_overflow": 0} if url.database in _IN_MEMORY else {}
    options = {"check_same_thread": False, "timeout": BUSY_SECONDS}
    engine = create_engine(url, poolclass=QueuePool, pool_timeout=BUSY_SECONDS, connect_args=options, **size)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    _follow_file(engine)
    return engine


def _follow_file(engine: Engine) -> None:
    """A connection whose file was moved away would go on writing it there: it is given up for one to the file that now
    has the name. Where there is none, none is made: who moves the file back finds it as it was."""
    opened = Path()

    def note(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        nonlocal opened
        _, _, name = connection.execute("PRAGMA database_list").fetchone()
        if name:
            opened = Path(name)
            record.info["file"] = opened.stat()

    def compare(_: sqlite3.Connection, record: ConnectionPoolEntry, __: object) -> None:
        if (file := record.info.get("file")) is not None and not (opened.exists() and samestat(opened.stat(), file)):
            raise DisconnectionError("the file of this connection was moved away")

    def refuse(*_: object) -> None:
        if not opened.exists():
            raise HistoryUnavailableError(
                "its file was moved or deleted while it was open",
                remedy="move it back, or start the service again for a new one",
                place=engine.url.render_as_string(hide_password=True),
            )

    for name, listener in (("connect", note), ("checkout", compare), ("do_connect", refuse)):
        event.listen(engine, name, listener)


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # BEGIN is said by _begin_sqlite, not guessed by the driver
    connection.execute("PRAGMA foreign_keys = ON")
    # WAL, so that readers never wait. The switch itself does not heed the timeout when others open the file too.
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


EVERY_SECONDS = 5.0
"""How long an answer that it can is good for, in each process: probes come every second or two."""
ROOM_BYTES = 2**20
"""A plan with its trace, in SQLite's log and in its file."""

_VERSIONS = table(VERSION_TABLE, column("version_num"))


class Writability:
    """A write every few seconds at most, however often somebody asks; none where others have just written."""

    def __init__(self, database: Database, now: Callable[[], float] = time.monotonic) -> None:
        self._database, self._now = database, now
        self._good_until = float("-inf")
        self._writes = database.writes

    def probe(self) -> None:
        """Raises HistoryUnavailableError if nothing can be written."""
        if self._now() < self._good_until:
            return
        # Among hundreds of writers a probe might wait longer for its turn than its caller does.
        if self._database.writes == self._writes or self._now() > self._good_until + EVERY_SECONDS:
            with self._database.writing() as connection:
                connection.execute(update(_VERSIONS).values(version_num=_VERSIONS.c.version_num))
        self._writes = self._database.writes
        url = self._database.url
        if url.get_backend_name() == "sqlite" and url.database and url.database not in _IN_MEMORY:
            # SQLite writes into room that its files have already: a small write tells nothing of the next plan.
            try:
                with tempfile.TemporaryFile(dir=Path(url.database).parent) as room:
                    os.posix_fallocate(room.fileno(), 0, ROOM_BYTES)
            except OSError as refused:
                raise HistoryUnavailableError(
                    f"its disk has no room for a plan: {refused.strerror}",
                    remedy="free space, or shorten the retention",
                    place=self._database.place,
                ) from refused
        self._good_until = self._now() + EVERY_SECONDS

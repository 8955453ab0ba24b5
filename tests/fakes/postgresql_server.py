"""A PostgreSQL server of the machine's own binaries, for as long as the tests run."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

_NUMBERS = count(1)


def binaries() -> Path | None:
    """The folder of the newest server, as Debian installs it."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return versions[-1].parent if versions else None


@contextmanager
def server() -> Iterator[Server]:
    """A running one. Skips where the machine has none; in CI it has to be there."""
    folder = binaries()
    if folder is None:
        reason = "no PostgreSQL server: /usr/lib/postgresql/*/bin/initdb is missing"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with running(folder) as found:
        yield found


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A running server; skips where the machine has none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with server() as found:
        yield found


@dataclass(frozen=True)
class Server:
    """Listens on a socket in its folder, on no port."""

    binaries: Path
    folder: Path
    user: str | None
    """Who runs it where the tests run as root: the server refuses to."""

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"history_{next(_NUMBERS)}"
        import psycopg

        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        return self._url(name)

    def start(self) -> None:
        settings = f"-c listen_addresses='' -k {self.folder} -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "30", "-l", f"{self.folder}/log", "-o", settings, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def create(self) -> None:
        self._run("initdb", "-D", self._data, "-U", "planner", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _url(self, name: str) -> str:
        return f"postgresql://planner@/{name}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments],
            check=True, user=self.user, cwd=self.folder, timeout=600,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


@contextmanager
def running(folder_of_binaries: Path) -> Iterator[Server]:
    """A server with no database of ours yet; gone with everything in it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="planner-pg-"))  # short: a socket's path has at most 107 characters
    user = None
    if os.geteuid() == 0:
        user = "postgres" if _exists("postgres") else "nobody"
        shutil.chown(folder, user)
    server = Server(folder_of_binaries, folder, user)
    try:
        server.create()
        server.start()
        yield server
    finally:
        subprocess.run(
            [str(folder_of_binaries / "pg_ctl"), "-D", str(folder / "data"), "-m", "immediate", "stop"],
            check=False, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True

"""A PostgreSQL of the machine's own, for what is said of backups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A running server; skips where the machine has none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    from postgresql_server import server

    with server() as found:
        yield found

"""Errors of a history that cannot be read or written, and of names that it refuses."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from planner.errors import PlannerError
from planner.job.masking import mask_text


class HistoryError(PlannerError):
    """What was asked of the history cannot be: a plan that it does not have, a value that it cannot hold."""


class HistoryUnavailableError(HistoryError):
    """The database is not there, full, busy, or of another schema: the same request may succeed later."""


_SQLITE = {
    sqlite3.SQLITE_FULL: ("its disk is full", "free space, or shorten the retention; nothing was half stored"),
    sqlite3.SQLITE_BUSY: ("other writers kept it locked", "try again; for many replicas use PostgreSQL"),
    sqlite3.SQLITE_LOCKED: ("other writers kept it locked", "try again; for many replicas use PostgreSQL"),
    sqlite3.SQLITE_READONLY: ("it may not be written", "give this process write access to the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "create the folder, or give this process access to it"),
    sqlite3.SQLITE_IOERR: ("its disk does not answer", "look at the disk on which the file lies"),
    sqlite3.SQLITE_NOTADB: ("the file is not an SQLite database", "name another file"),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "restore it from a backup"),
}

_POSTGRESQL = {
    "53100": ("its disk is full", "free space, or shorten the retention; nothing was half stored"),
    "28P01": ("it refuses the password", "set the right one in the URL"),
    "3D000": ("it has no database of that name", "create the database, or name another"),
    "40001": ("others changed the same at the same moment", "try again"),
    "40P01": ("others changed the same at the same moment", "try again"),
    "55P03": ("other writers kept it locked", "try again"),
}
"""By SQLSTATE: PostgreSQL's documentation, appendix A."""


@contextmanager
def translate_errors(place: str) -> Iterator[None]:
    """Whatever the database says inside, said as a HistoryError about `place`."""
    try:
        yield
    except exc.DataError as refused:
        raise HistoryError(f"a value cannot be stored: {_first_line(refused.orig)}", place=place) from refused
    except exc.IntegrityError as contradiction:
        raise HistoryError(
            f"it contradicts itself, or what is stored: {_first_line(contradiction.orig)}", place=place
        ) from contradiction
    except exc.DBAPIError as fault:
        usual = f"it cannot be used: {_first_line(fault.orig)}", "see that it runs and that the URL is right"
        if isinstance(fault.orig, sqlite3.Error):
            code = getattr(fault.orig, "sqlite_errorcode", 0) & 0xFF  # the rest says where, not what
            problem, remedy = _SQLITE.get(code, usual)
        else:
            problem, remedy = _POSTGRESQL.get(getattr(fault.orig, "sqlstate", None) or "", usual)
        raise HistoryUnavailableError(problem, remedy=remedy, place=place) from fault
    except exc.TimeoutError as waited:
        raise HistoryUnavailableError("every connection is in use", remedy="try again", place=place) from waited
    except (OverflowError, UnicodeEncodeError) as refused:  # sqlite3 raises these as they are
        raise HistoryError(f"a value cannot be stored: {refused}", place=place) from refused


def _first_line(fault: BaseException | None) -> str:
    return next(iter(str(fault).strip().splitlines()), type(fault).__name__)


LONGEST = 253
"""Characters: what a Kubernetes name, and a host name, may have."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_name(text: str, place: str) -> str:
    """The name as it came. Raises HistoryError if it is empty, too long, or has control characters."""
    if not text or len(text) > LONGEST or _CONTROL.search(text):
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise HistoryError(
            f"{shown!a} is not a valid name", allowed=f"1 to {LONGEST} characters, no control characters", place=place
        )
    return text


def checked_label(text: str, place: str) -> str:
    return checked_name(text, place) if text else text


def label(value: object) -> str:
    """Whatever stands in a spec, as text that every database takes."""
    return mask_text(_CONTROL.sub(" ", str(value)))[:LONGEST]

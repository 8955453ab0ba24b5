"""SQL conditions for jobs that have not ended; a job whose end nobody reports counts until its lease lapses."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_

from planner.history.schema import JOBS


def is_open(now: datetime) -> ColumnElement[bool]:
    """A job that has not ended, and whose lease, if it has one, is not over."""
    return and_(JOBS.c.ended_at.is_(None), or_(JOBS.c.lapses_at.is_(None), JOBS.c.lapses_at > now))


def has_ended(now: datetime) -> ColumnElement[bool]:
    """A job whose end was told, or whose lease is over."""
    return or_(JOBS.c.ended_at.is_not(None), JOBS.c.lapses_at <= now)


def ended_since(moment: datetime, now: datetime) -> ColumnElement[bool]:
    """A job that ended at this moment or later; one whose end nobody told ended when its lease was over."""
    lapsed = and_(JOBS.c.ended_at.is_(None), JOBS.c.lapses_at <= now, JOBS.c.lapses_at >= moment)
    return or_(JOBS.c.ended_at >= moment, lapsed)

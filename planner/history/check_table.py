"""Stores checks: who asked for a plan, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from planner.history.database import Database, upsert
from planner.history.names import checked_label, checked_name, label
from planner.history.schema import CHECKS
from planner.history.totals import add
from planner.report.statement import Verdict

VERDICTS = "verdicts"
"""The total of the verdicts that were given, by verdict: unlike the checks, it is never forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer; `verdict` is None while the plan is still being made."""

    check_id: str
    plan_id: str
    asked_at: datetime
    verdict: Verdict | None = None
    system: str = ""
    """Which hook asked: slurm, ray, kubernetes, cli, ..."""
    name: str = ""
    team: str = ""
    queue: str = ""


class Checks:
    """What was asked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, check: Check) -> None:
        """Store the check, or its verdict when it is known; a verdict is never forgotten again."""
        row = {
            "check_id": checked_name(check.check_id, "check_id"),
            "plan_id": checked_label(check.plan_id, "plan_id"),
            "asked_at": check.asked_at,
            "verdict": "" if check.verdict is None else check.verdict.value,
            **{name: label(getattr(check, name)) for name in ("system", "name", "team", "queue")},
        }
        with self._database.writing() as connection:
            statement = upsert(connection, CHECKS, row)
            later = {"plan_id": row["plan_id"], "verdict": row["verdict"]}
            unanswered = CHECKS.c.verdict == ""
            answered = statement.on_conflict_do_update(index_elements=["check_id"], set_=later, where=unanswered)
            # A verdict counts when it is first stored, and once: in the transaction that stores it.
            told = connection.execute(answered.returning(CHECKS.c.check_id)).first()
            if told is not None and check.verdict is not None:
                add(connection, {(VERDICTS, (("verdict", check.verdict.value),)): 1})

    def newest(self, limit: int = 100, *, plan_id: str | None = None) -> tuple[Check, ...]:
        """At most `limit` checks, newest first."""
        query = select(CHECKS).order_by(CHECKS.c.asked_at.desc(), CHECKS.c.check_id).limit(limit)
        if plan_id is not None:
            query = query.where(CHECKS.c.plan_id == label(plan_id))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(
            Check(
                check_id=row.check_id, plan_id=row.plan_id, asked_at=row.asked_at, system=row.system, name=row.name,
                team=row.team, queue=row.queue, verdict=Verdict(row.verdict) if row.verdict else None,
            )
            for row in rows
        )  # fmt: skip

    def counts(self) -> dict[Verdict | None, int]:
        """How many checks that are still remembered got each verdict; None: not answered yet."""
        query = select(CHECKS.c.verdict, func.count()).group_by(CHECKS.c.verdict)
        with self._database.reading() as connection:
            return {Verdict(verdict) if verdict else None: count for verdict, count in connection.execute(query)}

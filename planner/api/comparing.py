"""`planner.compare`: what was predicted beside what was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Unpack

from planner.api.child import call
from planner.api.given import JobSource, JobWords, read_job
from planner.api.planning import Plan
from planner.comparing import compare_files
from planner.comparing.comparison import Comparison, to_json


@dataclass(frozen=True)
class Comparisons:
    """One for each measurement; it prints as `planner compare` does."""

    each: tuple[Comparison, ...]

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.each)

    def __len__(self) -> int:
        return len(self.each)

    def __getitem__(self, number: int) -> Comparison:
        return self.each[number]

    def to_dict(self) -> list[dict[str, Any]]:
        return [to_json(each) for each in self.each]

    def __str__(self) -> str:
        return compare_files.format_comparisons(self.each, as_json=False)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def compare(
    predicted: Plan | JobSource,
    measured: str | os.PathLike[str],
    *,
    case: str = "",
    rank: int | None = None,
    settings: Mapping[str, Any] | None = None,
    **words: Unpack[JobWords],
) -> Comparisons:
    """Set a plan, or a job that is planned for it, beside a file of measurements or a recorded snapshot.

    `case` and `rank` choose among the measurements. Raises PlannerError for a file that is neither or has none of
    them, and what :func:`planner.plan` raises.
    """
    if isinstance(predicted, Plan):
        path = Path(measured)
        return Comparisons(tuple(compare_files.run_compare(predicted.statement, path, case=case, rank=rank)))
    given = read_job(predicted, settings, **words)
    return Comparisons(tuple(call("planner.api.work:compare_job", given.job, os.fspath(measured), case, rank)))

"""Plans and runs that were kept as JSON, read back from their files."""

from __future__ import annotations

from pathlib import Path

from planner.comparing.plan_comparison import Predicted
from planner.errors import SpecError
from planner.job.json_text import read_json
from planner.job.text_files import file_text
from planner.report import program_statement, statement


def read_stored_plan(path: Path) -> Predicted | None:
    """What `planner plan` or `planner run --format json` wrote; None for any other file, which its own reader judges.

    Raises PlannerError for a plan that lacks something.
    """
    try:
        document = read_json(file_text(path, str(path)), str(path))
    except SpecError:
        return None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == statement.SCHEMA:
        return statement.from_json(document)
    if schema == program_statement.SCHEMA:
        return program_statement.from_json(document)
    return None

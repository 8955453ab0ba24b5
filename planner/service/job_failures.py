"""Why a job ran out of memory, from what was told of its end, and how that stands beside its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.comparing.plan_comparison import Predicted
from planner.errors import PlannerError
from planner.history.job_checks import LONGEST_FAILURE
from planner.history.job_values import BoundJob
from planner.history.store import History
from planner.out_of_memory.explanation import explain
from planner.out_of_memory.failure import Cause
from planner.out_of_memory.host_words import find_host_failures
from planner.out_of_memory.messages import find_messages
from planner.report import program_statement, statement
from planner.service.problems import RequestError

LONGEST_TEXT = 2**18
"""Characters of what may be told of an end: the last lines of a log."""


@dataclass(frozen=True, slots=True)
class ToldFailure:
    """What follows from the words. `ran_out` is False where the same words are said of other ends too."""

    cause: Cause | None
    words: str
    ran_out: bool


NOTHING_TOLD = ToldFailure(None, "", False)


def failure_of(text: str, messages: Sequence[str]) -> ToldFailure:
    """The cause that a text gives, or the messages of ranks; what torch said in a form that is not known is UNKNOWN.

    Raises RequestError (422) for a text in which nothing says that memory ran out.
    """
    if text:
        try:
            found = explain(text, place="failure")
        except PlannerError as error:
            raise RequestError(
                422, error.problem, allowed=error.allowed, remedy=error.remedy, place="failure"
            ) from None
        certain = bool(found.messages) or any(each.certain for each in found.host)
        return ToldFailure(found.cause if certain else None, _words(text) if certain else "", certain)
    if not messages:
        return NOTHING_TOLD
    said = "\n".join(messages)
    known = bool(find_messages(said) or find_host_failures(said))
    return ToldFailure(explain(said).cause if known else Cause.UNKNOWN, said[:LONGEST_FAILURE], True)


def beside_plan(history: History, job: BoundJob) -> list[str]:
    """In what the end of a job that ran out of GPU memory and its plan differ; empty where nothing was told."""
    if job.cause is None or job.cause.of_host or not job.failure:
        return []
    document = history.plans.document(job.plan_id)
    if document is None:
        return []
    try:
        plan: Predicted = (
            program_statement.from_json(document)
            if document.get("schema") == program_statement.SCHEMA
            else statement.from_json(document)
        )
        return [each.sentence for each in explain(job.failure, plan=plan).partings]
    except PlannerError:
        return []  # a plan of an earlier version, or words that this version does not know


def _words(text: str) -> str:
    """The lines that say it, as they were told."""
    lines = text.splitlines()
    places = [*(each.line for each in find_messages(text)), *(each.line for each in find_host_failures(text))]
    return "\n".join(lines[min(places) - 1 :])[:LONGEST_FAILURE]

"""Writes out the evaluations that a step on paper has shortened."""

from __future__ import annotations

from planner.events import Event, Phase, Repeat, write_out_repeats
from planner.job.schema import Job
from planner.job.shown_evaluation import batches_on_device, shown_batches, shown_tokens
from planner.long_run.series import Series, write_out


def write_out_evaluations(job: Job, events: list[Event], repeats: list[Repeat]) -> tuple[list[Event], list[Repeat]]:
    """The events with every evaluation step and every generated token, and what still repeats of them.

    Raises UnlikePartsError where what was run does not tell what was not.
    """
    for series in _series_of(job):
        events, repeats = write_out(list(write_out_repeats(events, repeats)), series), []
    return events, repeats


def _series_of(job: Job) -> list[Series]:
    evaluation = job.train.eval
    if evaluation is None:
        return []
    found = []
    batches = shown_batches(evaluation)
    if any(each.alike for each in batches):
        found.append(Series(Phase.EVAL, batches, batches_on_device(evaluation)))
    if evaluation.generate is not None:
        new_tokens = evaluation.generate.max_new_tokens
        tokens = shown_tokens(new_tokens)
        if any(each.alike for each in tokens):
            found.append(Series(Phase.GENERATE, tokens, new_tokens - 1, before=1))
    return found

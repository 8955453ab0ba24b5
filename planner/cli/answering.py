"""A job planned for a command, with its progress shown, and what its verdict ends with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, EXCEEDS
from planner.progress import shown

if TYPE_CHECKING:
    from planner.planning import Planned


def answered(job_file: Path, *, with_advice: bool, keep_traces: bool = False) -> Planned:
    """The answer for the job of a file; raises what loading and planning raise."""
    from planner import side_by_side
    from planner.answer import answer
    from planner.spec.loading import load_job

    job = load_job(job_file)
    with shown() as progress:
        progress("loading PyTorch")
        return answer(
            job,
            with_advice=with_advice,
            progress=progress,
            processes=side_by_side.usable(),
            keep_traces=keep_traces,
        )


def exit_code(found: Planned) -> int:
    """What the verdict ends with; a tight one is said on standard error."""
    if found.plan.verdict == "exceeds":
        return EXCEEDS
    if found.plan.verdict == "tight":
        print("warning: it is tight", file=sys.stderr)
    return DONE

"""The packages whose own code the training step of a job runs, beside torch and transformers."""

from __future__ import annotations

from planner.distribution import refuse_without
from planner.job.schema import Job


def refuse_missing_packages(job: Job) -> None:
    """Raises SpecError for a package that is not installed in this Python: before anything is compiled or traced."""
    if job.model.adapter is not None:
        refuse_without(("peft",), extra="plan", user="an adapter", place="model.adapter")

"""The packages whose own code a job runs, beside torch and transformers."""

from __future__ import annotations

from planner.distribution import refuse_without
from planner.job.schema import Job


def refuse_missing_packages(job: Job) -> None:
    """Raises SpecError for a package that is not installed in this Python: before anything is compiled or traced."""
    if job.model.adapter is not None:
        refuse_without(("peft",), extra="plan", user="an adapter", place="model.adapter")
    trainer = job.trainer
    if trainer is not None and ("deepspeed" in trainer.arguments or "deepspeed_config" in trainer.accelerate):
        user = "a Trainer whose files name DeepSpeed"
        refuse_without(("deepspeed",), extra="deepspeed", user=user, place="trainer")

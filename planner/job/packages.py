"""The packages whose own code a job runs, beside torch and transformers."""

from __future__ import annotations

from planner.distribution import refuse_without
from planner.job.schema import Job
from planner.job.trainer import uses_deepspeed

LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "peft", "torchao")
"""Those whose own code some jobs run."""


def libraries_of(job: Job) -> tuple[str, ...]:
    """Those whose own code the step of this job runs; all may be of a `trainer`'s."""
    if job.trainer is not None:
        return LIBRARIES
    adapter, optimizer = job.model.adapter, job.train.optimizer.name.partition(".")[0]
    is_used = {
        "bitsandbytes": optimizer == "bitsandbytes" or (adapter is not None and adapter.kind == "qlora"),
        "peft": adapter is not None,
        "torchao": optimizer == "torchao",
    }
    return tuple(name for name in LIBRARIES if is_used.get(name))


def refuse_missing_packages(job: Job) -> None:
    """Raises SpecError for a package that is not installed in this Python: before anything is compiled or traced."""
    if job.model.adapter is not None:
        needed = ("peft", "bitsandbytes") if job.model.adapter.kind == "qlora" else ("peft",)
        refuse_without(needed, extra="plan", user="an adapter", place="model.adapter")
    if uses_deepspeed(job):
        refuse_without(("deepspeed",), extra="deepspeed", user="a Trainer whose files name DeepSpeed", place="trainer")

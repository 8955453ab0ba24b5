"""What a search and advice vary of a job with `trainer`: the settings of its files, in the words of their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import SpecError
from planner.job.schema import Job
from planner.job.trainer import ARGUMENTS, KEYS, in_its_words
from planner.searching.axes import Axis, Change

_AS_THEY_ARE = ("train.sequence_length", "train.padding", "cluster.", "allocator.", "software.", "trainer.")
"""Keys, or their beginnings, of any spec."""
_ALLOWED = (
    "micro_batch_size, gradient_accumulation_steps, recompute (none, full), sequence_length, gpu, allocator, cluster"
    f" keys as cluster.nodes, and keys of TrainingArguments as {ARGUMENTS}.optim"
)


def in_words_of(job: Job, axis: Axis) -> Axis:
    """The axis as it varies this job. Raises SpecError for what its files decide in other words."""
    if job.trainer is None:
        return axis
    return Axis(axis.name, tuple(_translate(axis.name, change) for change in axis.values), axis.labels)


def _translate(name: str, change: Change) -> Change:
    written: dict[str, Any] = {}
    for path, value in (in_its_words(*each) for each in change.items()):
        if not path.startswith(_AS_THEY_ARE):
            raise refusal(name)
        written[path] = value
    return written


def refusal(name: str) -> SpecError:
    """The error for an axis in which such a job cannot be varied."""
    return SpecError(
        f"{name} cannot be varied so: the files of a job with `trainer` decide it",
        allowed=_ALLOWED,
        remedy=f"vary the key that says it there, as {ARGUMENTS}.optim=adamw_torch,adafactor; with another file"
        " (DeepSpeed's, accelerate's, PEFT's) it is another job: plan each",
        place=name,
    )


def key_of(job: Job, path: str) -> str:
    """Where the job says what a spec without `trainer` says at `path`."""
    return path if job.trainer is None else KEYS.get(path, path)


def checkpoints(job: Job) -> bool:
    """Whether its blocks are computed again in the backward."""
    assert job.trainer is not None
    fsdp = job.trainer.accelerate.get("fsdp_config")
    by_accelerate = isinstance(fsdp, Mapping) and bool(fsdp.get("fsdp_activation_checkpointing"))
    return by_accelerate or bool(job.trainer.arguments.get("gradient_checkpointing"))


def adapter_change(job: Job) -> dict[str, Any]:
    """LoRA in the place of training every parameter; nothing where there is an adapter."""
    assert job.trainer is not None
    if job.trainer.peft:
        return {}
    half = "float16" if job.trainer.arguments.get("fp16") else "bfloat16"
    lora = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 16, "lora_alpha": 32}
    return {"trainer.peft": lora, "model.parameter_dtype": half}

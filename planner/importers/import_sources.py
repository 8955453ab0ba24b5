"""What a person gives to import a job from, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner.job.overrides import Setting
from planner.job.schema import Job
from planner.job.shorthand import Shorthand


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSources:
    """What a person gives on the command line; each may be absent."""

    training_arguments: Path | None = None
    accelerate: Path | None = None
    deepspeed: Path | None = None
    torchrun: str = ""
    peft: Path | None = None
    torchtitan: Path | None = None
    axolotl: Path | None = None
    llama_factory: Path | None = None
    job: Path | None = None
    """A spec that need not be complete: JOB.yaml."""
    model: Path | str | None = None
    """The path of a config.json, or a model's name."""
    gpu: str = ""
    sequence_length: int | str | None = None
    words: Shorthand = field(default_factory=Shorthand)
    """What options say, whatever the files do; the GPU and the sequence's length stand above."""
    settings: Sequence[Setting] = ()
    """As `words`, of single keys."""


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """The job, and what people are told of how it came about."""

    job: Job
    ignored: Mapping[str, tuple[str, ...]]
    """By source: the keys that do not matter to memory, each once."""
    not_read: tuple[str, ...] = ()
    """Words of the launch line that are not fields of TrainingArguments."""
    supposed: tuple[str, ...] = ()
    """What nobody said, and what was taken for it."""
    chosen: tuple[str, ...] = ()
    """What was said and leaves something open, and what it was taken for."""

"""Trains by transformers' Trainer as a spec's `trainer` says, as one rank: `torchrun ... -m planner.programs.trainer
BUNDLE`, or `accelerate launch --config_file FILE -m planner.programs.trainer BUNDLE`. The bundle is a file of JSON as
`planner spec --bundle` prints it."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

from planner.errors import SpecError
from planner.job.json_text import read_json
from planner.job.loading import load_bundle
from planner.training.inputs import find_feed, make
from planner.training.models import transformers_models

BUNDLE = ""
SAMPLES = 1_000_000


class Samples(Dataset[dict[str, Tensor]]):
    """Random samples of what the model takes, all of one size."""

    def __init__(self) -> None:
        self._feed = find_feed(model, job)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, _: int) -> dict[str, Tensor]:
        return {name: tensor[0] for name, tensor in make(self._feed, 1, own_loss=True).items()}


def read(kind: Any, written: dict[str, Any], place: str) -> Any:
    """What the class makes of a file's keys; what it refuses, it says."""
    try:
        return kind(**written)
    except (TypeError, ValueError) as error:
        known = sorted(field.name for field in fields(kind) if field.init)
        raise SpecError(
            f"{kind.__name__} refuses it: {error}",
            allowed=", ".join(known) if isinstance(error, TypeError) else "",
            remedy="correct the file; the keys are those of the installed version",
            place=place,
        ) from error


written = BUNDLE or Path(sys.argv[1]).read_text(encoding="utf-8")
job = load_bundle(read_json(written, "the bundle"), "the bundle")
assert job.trainer is not None
on_cpu = {} if torch.cuda.is_available() else {"use_cpu": True}
if on_cpu and os.environ.get("WORLD_SIZE") == "1":
    os.environ.pop("LOCAL_RANK", None)  # by which accelerate, on a CPU alone, replicates a model that has no peers
arguments = read(transformers.TrainingArguments, {**job.trainer.arguments, **on_cpu}, "trainer.arguments")
model = transformers_models.from_config(job.model, getattr(torch, job.model.parameter_dtype))
samples = Samples()
if job.trainer.peft:
    import peft

    kind = peft.PEFT_TYPE_TO_CONFIG_MAPPING[job.trainer.peft.get("peft_type", "LORA")]
    config = {name: value for name, value in job.trainer.peft.items() if name != "peft_type"}
    model = peft.get_peft_model(model, read(kind, config, "trainer.peft"))
transformers.Trainer(model=model, args=arguments, train_dataset=samples, eval_dataset=samples).train()

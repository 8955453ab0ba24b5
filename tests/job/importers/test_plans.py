"""Adopted specs load again, and plan as specs that are written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from foreign_files import FSDP_2, accelerate_config, training_arguments
from importing_folder import LLAMA, TORCHRUN, ZERO_2, Folder

from planner.job.loading import bundle, load_bundle, load_job
from planner.job.printing import job_yaml
from planner.job.schema import Job, Metadata
from planner.planning.job_plan import plan_job
from planner.report.statement import Verdict

BY_HAND = """
model: {hf_config: config.json, parameter_dtype: bfloat16}
train:
  micro_batch_size: 2
  sequence_length: 128
  gradient_accumulation_steps: 2
  precision: bf16_autocast
  loss: model
  optimizer: {name: AdamW, fused: true, lr: 5.0e-5, betas: [0.9, 0.999], eps: 1.0e-8, weight_decay: 0.0}
  recompute: full
  gradient_clipping: 1.0
  data_loader: {pin_memory: true}
parallel: {dp_replicate: {degree: 2, bucket_cap_mb: 1}}
cluster: {gpus_per_node: 2, gpu: H100-SXM-80GB}
"""


def of_the_trainer(folder: Folder) -> Job:
    arguments = training_arguments(
        bf16=True, per_device_train_batch_size=2, gradient_accumulation_steps=2, activation_checkpointing=True,
        ddp_bucket_cap_mb=1,
    )  # fmt: skip
    return folder.import_job(training_arguments=folder.write("args.json", arguments), torchrun=TORCHRUN).job


def by_deepspeed(folder: Folder) -> Job:
    arguments = training_arguments(bf16=True, per_device_train_batch_size=2, deepspeed=dict(ZERO_2))
    return folder.import_job(training_arguments=folder.write("args.json", arguments), torchrun=TORCHRUN).job


def sharded_with_tied_weights(folder: Folder) -> Job:
    settings = dict(FSDP_2)
    config = accelerate_config(folder.path / "a.yaml", num_processes=2, distributed_type="FSDP", fsdp_config=settings)
    model = folder.write("tied.json", {**LLAMA, "tie_word_embeddings": True})
    return folder.import_job(accelerate=config, job=folder.own_loop(), model=model).job


@pytest.mark.parametrize("imported", [of_the_trainer, by_deepspeed, sharded_with_tied_weights])
def test_what_is_printed_loads_again(folder: Folder, imported: Callable[[Folder], Job], tmp_path: Path) -> None:
    job = imported(folder)
    (tmp_path / "printed.yaml").write_text(job_yaml(job), encoding="utf-8")

    assert load_job(tmp_path / "printed.yaml") == job
    assert load_bundle(json.loads(json.dumps(bundle(job)))) == job


def test_the_trainers_job_plans_as_the_spec_that_says_the_same(folder: Folder) -> None:
    imported = of_the_trainer(folder)
    by_hand = load_job(folder.write("by_hand.yaml", BY_HAND))

    assert replace(imported, metadata=Metadata()) == by_hand
    assert plan_job(imported).plan.rank_classes == plan_job(by_hand).plan.rank_classes


@pytest.mark.parametrize(("imported", "ranks"), [(by_deepspeed, ["0", "1"]), (sharded_with_tied_weights, ["0-1"])])
def test_small_jobs_plan(folder: Folder, imported: Callable[[Folder], Job], ranks: list[str]) -> None:
    found = plan_job(imported(folder)).plan

    assert found.verdict == Verdict.FITS
    assert [each.ranks for each in found.rank_classes] == ranks

"""DeepSpeed's config after transformers and accelerate have filled it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from foreign_files import training_arguments
from importing_folder import TORCHRUN, ZERO_2, Folder

from planner.job.deepspeed_config import zero_of
from planner.job.schema import Job, Optimizer


def adopted(folder: Folder, config: Mapping[str, Any], **changed: Any) -> Job:
    folder.write("ds.json", config)
    path = folder.write("args.json", training_arguments(deepspeed="ds.json", **changed))
    return folder.import_job(training_arguments=path, torchrun=TORCHRUN).job


def test_auto_is_what_the_trainer_puts_there(folder: Folder) -> None:
    job = adopted(folder, ZERO_2, bf16=True, learning_rate=1e-4)
    zero = zero_of(job)

    assert (zero.stage, zero.dtype, zero.reduce_bucket_elements) == (2, "bfloat16", 64 * 64)
    assert zero.optimizer == Optimizer(
        name="AdamW", arguments={"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "fused": True}
    )
    assert (job.train.precision, job.train.gradient_clipping, job.train.micro_batch_size) == ("none", 1.0, 8)
    assert (job.parallel.dp_replicate.degree, job.parallel.dp_replicate.find_unused_parameters) == (2, False)


def test_without_its_key_deepspeed_does_not_clip(folder: Folder) -> None:
    config = {key: value for key, value in ZERO_2.items() if key != "gradient_clipping"}

    assert adopted(folder, config, bf16=True).train.gradient_clipping == 0.0


def test_an_optimizer_on_the_host_is_deepspeeds_own(folder: Folder) -> None:
    config = {key: value for key, value in ZERO_2.items() if key != "optimizer"}
    config["zero_optimization"] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}

    zero = zero_of(adopted(folder, config, bf16=True))

    assert (zero.offload, zero.optimizer.name, "fused" in zero.optimizer.arguments) == (True, "AdamW", False)


def test_any_optimizer_of_the_trainer_is_let_through(folder: Folder) -> None:
    config = {key: value for key, value in ZERO_2.items() if key != "optimizer"}

    assert zero_of(adopted(folder, config, bf16=True, optim="sgd")).optimizer.name == "SGD"


def test_a_config_alone_gives_its_numbers(folder: Folder) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, "steps_per_print": 10,
    }  # fmt: skip
    found = folder.import_job(deepspeed=folder.write("ds.json", config), torchrun=TORCHRUN)

    train = found.job.train
    assert (train.micro_batch_size, train.gradient_accumulation_steps, train.gradient_clipping) == (3, 2, 0.5)
    assert found.ignored == {str(folder.path / "ds.json"): ("steps_per_print",)}
    assert found.job.parallel.deepspeed == config


@pytest.mark.parametrize("stage", [1, 2])
def test_the_same_config_may_be_given_twice(folder: Folder, stage: int) -> None:
    config = {**ZERO_2, "zero_optimization": {"stage": stage}}
    path = folder.write("args.json", training_arguments(deepspeed="ds.json", bf16=True))

    job = folder.import_job(training_arguments=path, deepspeed=folder.write("ds.json", config), torchrun=TORCHRUN).job

    assert zero_of(job).stage == stage

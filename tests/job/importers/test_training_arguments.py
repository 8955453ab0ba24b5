"""What the Trainer does with TrainingArguments, said in the keys of a spec."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from foreign_files import training_arguments
from importing_folder import TORCHRUN, Folder

from planner.job.printing import job_yaml
from planner.job.schema import Compile, DpReplicate, Eval, Job, Optimizer, Recompute

ADAM = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


@pytest.fixture
def trained(folder: Folder) -> Callable[..., Job]:
    """The job of two ranks with these TrainingArguments."""

    def job(*, line: str = TORCHRUN, **changed: Any) -> Job:
        path = folder.write("args.json", training_arguments(**changed))
        return folder.import_job(training_arguments=path, torchrun=line).job

    return job


def test_the_whole_spec(trained: Callable[..., Job], golden: Callable[[str], str]) -> None:
    job = trained(
        bf16=True, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=2e-5, weight_decay=0.1,
        activation_checkpointing=True, eval_strategy="steps", eval_steps=50, run_name="llama-sft",
    )  # fmt: skip

    assert job_yaml(job) == golden("training_arguments.yaml")


SGD = {"lr": 5e-5, "weight_decay": 0.0}
NO_REENTRANCY = {"use_reentrant": False}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {
            "train.micro_batch_size": 8, "train.gradient_accumulation_steps": 1, "train.precision": "none",
            "train.optimizer": Optimizer(name="AdamW", arguments={"fused": True, **ADAM}),
            "train.gradient_clipping": 1.0, "train.recompute": Recompute(), "train.loss.name": "model",
            "train.eval": None, "parallel.dp_replicate": DpReplicate(degree=2, find_unused_parameters=True),
        }),
        ({"bf16": True}, {"train.precision": "bf16_autocast"}),
        ({"fp16": True}, {"train.precision": "fp16_autocast"}),
        ({"gradient_checkpointing": True}, {"train.recompute": Recompute(mode="full")}),
        ({"activation_checkpointing": True},
         {"train.recompute": Recompute(mode="full"), "parallel.dp_replicate": DpReplicate(degree=2)}),
        ({"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 2}},
         {"train.recompute": Recompute(mode="every", every=2)}),
        ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": NO_REENTRANCY},
         {"train.recompute": Recompute(mode="full")}),
        ({"optim": "adamw_torch"}, {"train.optimizer": Optimizer(name="AdamW", arguments=ADAM)}),
        ({"optim": "adamw_torch_8bit"},
         {"train.optimizer": Optimizer(name="torchao.AdamW8bit", arguments={"block_size": 256, **ADAM})}),
        ({"optim": "sgd", "optim_args": "momentum=0.9, nesterov=True"},
         {"train.optimizer": Optimizer(name="SGD", arguments={**SGD, "momentum": 0.9, "nesterov": True})}),
        ({"optim": "rmsprop", "optim_args": "alpha=0.9"},
         {"train.optimizer": Optimizer(name="RMSprop", arguments={**SGD, "alpha": 0.9})}),
        ({"eval_strategy": "steps", "eval_steps": 20, "per_device_eval_batch_size": 2},
         {"train.eval": Eval(micro_batch_size=2, every=20)}),
        ({"eval_strategy": "steps", "logging_steps": 30}, {"train.eval": Eval(micro_batch_size=8, every=30)}),
        ({"eval_strategy": "epoch"}, {"train.eval": Eval(micro_batch_size=8, every=100)}),
        ({"eval_strategy": "steps", "eval_steps": 0.5}, {"train.eval": Eval(micro_batch_size=8, every=100)}),
        (
            {"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 50, "ddp_broadcast_buffers": False,
             "ddp_static_graph": True,
             "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
            {"parallel.dp_replicate": DpReplicate(
                degree=2, bucket_cap_mb=50.0, broadcast_buffers=False, static_graph=True, no_sync=False
            )},
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_what_the_trainer_makes_of_them(
    trained: Callable[..., Job], changed: dict[str, Any], expected: dict[str, Any]
) -> None:
    job = trained(**changed)

    assert {path: attrgetter(path)(job) for path in expected} == expected


def test_compiling_is_said_and_so_is_no_clipping(trained: Callable[..., Job]) -> None:
    train = trained(torch_compile=True, max_grad_norm=0.0).train

    assert (train.compile, train.gradient_clipping) == (Compile(scope=("model",)), 0.0)


def test_fsdp_as_transformers_reads_it(trained: Callable[..., Job]) -> None:
    job = trained(
        bf16=True, fsdp="shard_grad_op auto_wrap offload", gradient_accumulation_steps=2,
        fsdp_config={"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "activation_checkpointing": True},
    )  # fmt: skip

    shard = job.parallel.dp_shard
    assert (job.train.precision, job.train.recompute.mode, job.model.parameter_dtype) == (
        "fsdp_mixed",
        "full",
        "float32",
    )
    assert (shard.degree, shard.reshard_after_forward, shard.offload, shard.no_sync) == (2, False, "cpu", True)
    assert (shard.groups, shard.keep_last, shard.reduce_dtype) == (
        ("model.embed_tokens", "model.norm lm_head"), True, "bfloat16",
    )  # fmt: skip


def test_a_file_of_transformers_4_is_read_too(folder: Folder) -> None:
    of_4 = {"overwrite_output_dir": True, "no_cuda": False, "logging_dir": "runs", "fsdp": [], "fsdp_config": {
        "min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}}  # fmt: skip
    path = folder.write("args.json", {**json.loads(training_arguments()), **of_4})

    assert folder.import_job(training_arguments=path, torchrun=TORCHRUN).job.parallel.dp_replicate.degree == 2


def test_what_does_not_matter_is_listed_once(folder: Folder) -> None:
    path = folder.write(
        "args.json", {"seed": 1, "output_dir": "out", "eval_steps": 5, "per_device_train_batch_size": 2}
    )

    found = folder.import_job(
        training_arguments=path, torchrun="torchrun train.py --seed 1 --per_device_train_batch_size 2"
    )

    assert found.ignored == {"the launch line": ("seed",), str(path): ("seed", "output_dir", "eval_steps")}


def test_the_models_dtype_is_that_of_its_config_and_it_is_said(folder: Folder) -> None:
    found = folder.import_job(torchrun="torchrun train.py --bf16")

    assert found.job.model.parameter_dtype == "bfloat16"
    assert found.supposed == (
        "model.parameter_dtype is bfloat16, as from_pretrained of transformers 5 loads this config",
    )


def test_a_spec_wins_over_what_is_only_supposed(folder: Folder) -> None:
    job = folder.write(
        "job.yaml", "model: {parameter_dtype: float32}\nparallel: {dp_replicate: {find_unused_parameters: false}}"
    )
    path = folder.write("args.json", training_arguments())

    found = folder.import_job(training_arguments=path, torchrun=TORCHRUN, job=job)

    assert found.job.parallel.dp_replicate == DpReplicate(degree=2)
    assert (found.job.model.parameter_dtype, found.supposed) == ("float32", ())

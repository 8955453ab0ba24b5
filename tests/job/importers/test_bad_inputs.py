"""What cannot be used is refused by name: what arrived, what is allowed, what to change, and where."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from foreign_files import FSDP_2, accelerate_config, training_arguments
from importing_folder import TORCHRUN, ZERO_2, Folder


def assert_three_parts(message: str) -> None:
    lines = message.splitlines()
    assert lines[-2].startswith("  allowed: "), message
    assert lines[-1].startswith("  change:  "), message
    assert len(lines[-2]) > len("  allowed: "), message
    assert len(lines[-1]) > len("  change:  "), message


@pytest.mark.parametrize(
    ("written", "first_line"),
    [
        ({"per_device_train_batch_size": "4"}, 'args.json:2:34: per_device_train_batch_size is "4"'),
        ({"per_device_train_batch_size": 4.5}, "args.json:2:34: per_device_train_batch_size is 4.5"),
        ({"per_device_train_batch_size": None}, "args.json:2:34: per_device_train_batch_size is null"),
        ({"bf16": "yes"}, 'args.json:2:11: bf16 is "yes"'),
        ({"per_device_batch_size": 4}, "args.json:2:3: unknown key `per_device_batch_size`"),
        (
            {"optim": "galore_adamw"},
            'args.json:2:12: optim is "galore_adamw": others are not planned; write train.optimizer in JOB.yaml',
        ),
        (
            {"evaluation_strategy": "steps", "eval_strategy": "no"},
            'args.json:3:20: eval_strategy (evaluation_strategy, its old name) is "no" here, and "steps" at'
            " args.json:2:26",
        ),
        (
            {"num_generations": 8},
            "args.json:2:22: num_generations is 8: what preferences and rewards add is not planned",
        ),
        ({"optim": "sgd", "optim_args": "momentum=much"}, "args.json:3:17: optim_args holds 'momentum=much'"),
        ({"use_cpu": True}, "args.json:2:14: use_cpu is true: there is no GPU to plan for"),
        ({"bf16": True, "fp16": True}, 'args.json:2:11: precision is "bf16" here, and "fp16" at args.json:3:11'),
        ({"eval_strategy": "best"}, 'args.json:2:20: eval_strategy is "best"'),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            "args.json:4:22: use_reentrant is true: reentrant recomputation is not planned",
        ),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"preserve_rng_state": True}},
            "args.json:3:36: gradient_checkpointing_kwargs does not say use_reentrant, and torch then refuses"
            " or is reentrant",
        ),
        (
            {"accelerator_config": {"split_batches": True}},
            "args.json:3:22: split_batches is true: each rank would take a part of per_device_train_batch_size",
        ),
        (
            {"fsdp": "hybrid_shard"},
            'args.json:2:11: fsdp is "hybrid_shard": hybrid_shard is of FSDP 1',
        ),
        (
            {"fsdp": True, "fsdp_config": {"version": 3}},
            "args.json:4:16: fsdp_version is 3",
        ),
        ({"fsdp": True, "fp16": True}, "args.json:3:11: fp16 under FSDP is not planned"),
        (
            {"deepspeed": "../../etc/passwd"},
            "args.json:2:16: deepspeed is '../../etc/passwd', which lies outside of FOLDER",
        ),
        ({"deepspeed": "/etc/passwd"}, "args.json:2:16: deepspeed is '/etc/passwd', which lies outside of FOLDER"),
        (
            {"deepspeed": "https://host/ds.json"},
            "args.json:2:16: deepspeed is 'https://host/ds.json', which is not a file",
        ),
        (
            {"deepspeed": "missing.json"},
            "args.json:2:16: deepspeed is 'missing.json', and there is no such file in FOLDER",
        ),
        (
            {"resume_from_checkpoint": "out/checkpoint-5"},
            'args.json:2:29: resume_from_checkpoint is "out/checkpoint-5": what is'
            " loaded before training is written as train.checkpoint_load in JOB.yaml",
        ),
    ],
)
def test_training_arguments(folder: Folder, written: dict[str, Any], first_line: str) -> None:
    message = folder.refusal(training_arguments=folder.write("args.json", written), torchrun=TORCHRUN)

    assert message.splitlines()[0] == first_line
    assert_three_parts(message)


def test_all_keys_that_cannot_be_used_are_named_at_once(folder: Folder) -> None:
    written = {"per_device_batch_size": 4, "half_of_it": 1, "use_liger": 1, "use_cache": True, "bf16": "yes"}

    message = folder.refusal(training_arguments=folder.write("args.json", written), torchrun=TORCHRUN)

    assert message.splitlines()[:6] == [
        "5 keys cannot be planned as they are:",
        "    args.json:2:3: unknown key `per_device_batch_size` (did you mean `per_device_eval_batch_size`?)",
        "    args.json:3:3: unknown key `half_of_it` (delete it, or say what it decides in JOB.yaml)",
        "    args.json:5:16: use_cache is true: keys and values that training keeps in a cache are not planned (take it"
        " out to plan the job without it)",
        '    args.json:6:11: bf16 is "yes" (write it without quotes)',
        "    args.json:4:16: use_liger_kernel is 1 (delete it for the default)",
    ]
    assert_three_parts(message)


@pytest.mark.parametrize(
    ("changed", "first_line"),
    [
        ({"distributed_type": "MEGATRON_LM"}, 'distributed_type is "MEGATRON_LM", which is not planned'),
        ({"mixed_precision": "fp8"}, 'mixed_precision is "fp8", which is not planned'),
        ({"num_processes": 7, "num_machines": 2}, "num_processes is 7 over 2 machines"),
        ({"distributed_type": "NO"}, "num_processes is 8, and distributed_type is NO"),
        ({"use_cpu": True}, "use_cpu is true: there is no GPU to plan for"),
        (
            {
                "distributed_type": "FSDP",
                "fsdp_config": {**FSDP_2, "fsdp_version": 1, "fsdp_reshard_after_forward": "SOME_SHARD"},
            },
            'fsdp_config.fsdp_reshard_after_forward is "SOME_SHARD"',
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_backward_prefetch": "PRE"}},
            'fsdp_config.fsdp_backward_prefetch is "PRE"',
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_auto_wrap_policy": "BY_NAME"}},
            'fsdp_config.fsdp_auto_wrap_policy is "BY_NAME"',
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_use_orig_params": "perhaps"}},
            'fsdp_config.fsdp_use_orig_params is "perhaps"',
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}},
            'auto_wrap_policy is "NO_WRAP", which is not planned',
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {**FSDP_2, "fsdp_reshard_after_forward": "FULL_SHARD"}},
            'fsdp_config.fsdp_reshard_after_forward is "FULL_SHARD"',
        ),
        (
            {"parallelism_config": {"parallelism_config_dp_shard_size": 8}},
            "dp_shard_size is 8, and FSDP is not on",
        ),
        (
            {"parallelism_config": {"parallelism_config_sp_size": 2}},
            "sp_size is 2: sequence parallelism by DeepSpeed (Ulysses) is not planned",
        ),
    ],
)
def test_accelerate(folder: Folder, changed: dict[str, Any], first_line: str) -> None:
    config = accelerate_config(folder.path / "accelerate.yaml", **changed)

    message = folder.refusal(accelerate=config, job=folder.own_loop())

    assert message.startswith("accelerate.yaml:")
    assert message.splitlines()[0].endswith(f": {first_line}")
    assert_three_parts(message)


def test_what_is_not_planned_of_deepspeed_is_refused_by_its_reader(folder: Folder) -> None:
    config = {**ZERO_2, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}
    path = folder.write("args.json", training_arguments(deepspeed=config, bf16=True))

    message = folder.refusal(training_arguments=path, torchrun=TORCHRUN)

    assert message.startswith("args.json:")
    assert message.partition(": ")[2] == (
        'the DeepSpeed config\'s zero_optimization.offload_optimizer.device is "nvme", which is not'
        " planned\n  allowed: none, cpu"
    )


def test_auto_that_nobody_resolves(folder: Folder) -> None:
    message = folder.refusal(deepspeed=folder.write("ds.json", ZERO_2), torchrun=TORCHRUN, job=folder.own_loop())

    assert message == (
        'ds.json:11:16: bf16.enabled is "auto", and nothing says the precision\n'
        "  allowed: true or false\n"
        "  change:  add --from-training-arguments or --from-accelerate, which say it, or write it here"
    )


@pytest.mark.parametrize(
    ("line", "first_line"),
    [
        (
            "torchrun --nnodes $SLURM_NNODES train.py",
            ":19: '$SLURM_NNODES train.py' is a variable, and no shell is run",
        ),
        ('torchrun --nnodes "$N" train.py', ":20: '$N\" train.py' is a variable, and no shell is run"),
        ("torchrun `which train.py`", ":10: '`which train.py`' is a command, and no shell is run"),
        ("torchrun train.py; rm -rf out", ":18: '; rm -rf out' is several commands, and no shell is run"),
        ("torchrun train.py | tee log", ":19: '| tee log' is a pipe, and no shell is run"),
        ("torchrun train.py > log", ":19: '> log' is a redirection, and no shell is run"),
        ("torchrun train.py 'a", "the line cannot be read: No closing quotation"),
        ("torchrun --nnodes 1:4 train.py", "--nnodes is 1:4: the number of nodes changes while the job runs"),
        ("torchrun --nproc-per-node gpu train.py", "--nproc-per-node is gpu, which the machine decides"),
        ("torchrun --nproc-per-node 0 train.py", "--nproc-per-node is '0'"),
        ("make train", "the command starts 'make', which is not a known launcher"),
        ("", "the command starts 'nothing', which is not a known launcher"),
        ("accelerate launch --config_file a.yaml train.py", "--config_file is a.yaml, which is not read from the line"),
        ("accelerate launch --fp8_backend TE train.py", "--fp8_backend is not planned"),
        ("accelerate launch --num_gpus 2 train.py", "unknown option --num_gpus"),
        (
            "CUBLAS_WORKSPACE_CONFIG=:16:8 torchrun train.py",
            "the variable CUBLAS_WORKSPACE_CONFIG matters to memory, and is not understood here",
        ),
        (
            "PYTORCH_ALLOC_CONF=a:1 PYTORCH_CUDA_ALLOC_CONF=b:2 torchrun train.py",
            "PYTORCH_ALLOC_CONF is 'a:1', and PYTORCH_CUDA_ALLOC_CONF is 'b:2'",
        ),
        (
            "torchrun train.py --per_device_train_batch_size four",
            '--per_device_train_batch_size: per_device_train_batch_size is "four"',
        ),
        (
            "torchrun train.py --use_cache",
            "--use_cache: use_cache is true: keys and values that training keeps in a cache are not planned",
        ),
    ],
)
def test_launch_lines(folder: Folder, line: str, first_line: str) -> None:
    path = folder.own_loop()

    message = folder.refusal(torchrun=line or "  ", job=path)

    assert message.splitlines()[0].removeprefix("the launch line").removeprefix(": ") == first_line
    assert_three_parts(message)


def test_contradictions_name_both_places(folder: Folder) -> None:
    arguments = folder.write("args.json", {"per_device_train_batch_size": 4, "deepspeed": "ds.json", "bf16": True})
    folder.write("ds.json", {**ZERO_2, "train_micro_batch_size_per_gpu": 8})

    message = folder.refusal(training_arguments=arguments, torchrun=TORCHRUN)

    assert message == (
        "args.json:2:34: train.micro_batch_size is 4 here, and 8 at ds.json:43:37\n"
        "  allowed: one value, wherever it is said\n"
        "  change:  make them the same, or delete one of them"
    )


@pytest.mark.parametrize(
    ("line", "changed", "problem"),
    [
        ("torchrun --nproc-per-node 4 train.py", {}, "cluster.gpus_per_node is 4 here, and 8 at accelerate.yaml:"),
        (
            "torchrun --nproc-per-node 8 train.py --fp16",
            {},
            'the precision is "fp16" here, and "bf16" at accelerate.yaml:',
        ),
    ],
)
def test_a_line_against_accelerates_config(folder: Folder, line: str, changed: dict[str, Any], problem: str) -> None:
    config = accelerate_config(folder.path / "accelerate.yaml", **changed)

    message = folder.refusal(accelerate=config, torchrun=line, job=folder.own_loop())

    assert problem in message
    assert_three_parts(message)


def test_the_training_asks_for_another_precision_than_deepspeed(folder: Folder) -> None:
    folder.write("ds.json", {**ZERO_2, "bf16": {"enabled": True}})
    path = folder.write("args.json", training_arguments(deepspeed="ds.json"))

    message = folder.refusal(training_arguments=path, torchrun=TORCHRUN)

    assert "bf16.enabled is true, and the training asks for none" in message
    assert_three_parts(message)


def test_a_spec_against_a_file(folder: Folder) -> None:
    arguments = folder.write("args.json", {"per_device_train_batch_size": 4})
    job = folder.write("job.yaml", "train:\n  micro_batch_size: 2\n")

    message = folder.refusal(training_arguments=arguments, torchrun=TORCHRUN, job=job)

    assert message.splitlines()[0] == "job.yaml:2:21: train.micro_batch_size is 2 here, and 4 at args.json:2:34"


def test_all_that_is_missing_is_said_at_once(folder: Folder) -> None:
    path = folder.write("args.json", {"seed": 1})

    message = folder.refusal(training_arguments=path, model=None, gpu="", sequence_length=None)

    names = [line.strip().split(":")[0] for line in message.splitlines()[1:-2]]
    assert names == ["model", "cluster.gpu", "train.sequence_length", "cluster.gpus_per_node"]
    assert_three_parts(message)


def test_the_parts_of_a_model_that_nobody_knows_are_asked_for(folder: Folder) -> None:
    model = folder.write("other.json", {"model_type": "mamba", "vocab_size": 10})
    config = accelerate_config(folder.path / "accelerate.yaml", distributed_type="FSDP", fsdp_config=dict(FSDP_2))

    message = folder.refusal(accelerate=config, job=folder.own_loop(), model=model)

    names = [line.strip().split(":")[0] for line in message.splitlines()[1:-2]]
    assert names == ["parallel.dp_shard.groups", "model.blocks"]
    assert_three_parts(message)


@pytest.mark.parametrize("source", ["training_arguments", "deepspeed", "accelerate", "job"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [("[1, 2]", "the file holds a list"), ("7", "the file holds 7"), ('"text"', 'the file holds "text"')],
)
def test_a_file_that_holds_no_mapping(folder: Folder, source: str, content: str, problem: str) -> None:
    message = folder.refusal(**{"torchrun": TORCHRUN, source: folder.write("some.json", content)})

    assert message.splitlines()[0] == f"some.json:1:1: {problem}"
    assert_three_parts(message)


@pytest.mark.parametrize("source", ["training_arguments", "deepspeed", "accelerate", "job"])
def test_a_file_of_100_mb_is_not_read(folder: Folder, source: str) -> None:
    path = folder.path / "large.json"
    with path.open("wb") as file:
        file.truncate(100_000_000)

    message = folder.refusal(**{"torchrun": TORCHRUN, source: path})

    assert message.splitlines()[0] == "large.json is larger than 1 MiB"
    assert_three_parts(message)


def test_a_link_out_of_the_folder_is_not_followed(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "ds.json"
    outside.write_text(json.dumps(ZERO_2), encoding="utf-8")
    (folder.path / "ds.json").symlink_to(outside)
    path = folder.write("args.json", training_arguments(deepspeed="ds.json", bf16=True))

    message = folder.refusal(training_arguments=path, torchrun=TORCHRUN)

    assert "deepspeed is 'ds.json', which lies outside of FOLDER" in message
    assert_three_parts(message)


def test_a_pipe_is_no_file(folder: Folder) -> None:
    os.mkfifo(folder.path / "args.json")

    message = folder.refusal(training_arguments=folder.path / "args.json", torchrun=TORCHRUN)

    assert message.splitlines()[0] == "args.json is not a regular file"

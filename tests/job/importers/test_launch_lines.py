"""What a launch line says: nodes, processes, the allocator, and fields of TrainingArguments."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_files import training_arguments
from importing_folder import ZERO_2, Folder

from planner.job.deepspeed_config import zero_of
from planner.job.schema import DpReplicate, Recompute


def ranks(folder: Folder, line: str, **given: Any) -> tuple[int, int]:
    cluster = folder.import_job(torchrun=line, job=folder.own_loop(), **given).job.cluster
    return cluster.nodes, cluster.gpus_per_node


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun train.py", (1, 1)),
        ("torchrun --nnodes=2 --nproc_per_node=4 --rdzv-backend=c10d --rdzv-endpoint=host:29400 train.py", (2, 4)),
        ("torchrun --nnodes 2:2 --nproc-per-node 4 -m my.training", (2, 4)),
        ("/opt/env/bin/python3.11 -u -m torch.distributed.run --nproc-per-node=2 train.py", (1, 2)),
        ("python -m deepspeed.launcher.runner --num_gpus 4 train.py", (1, 4)),
        ("srun --nodes=2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 4 train.py", (2, 4)),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py", (2, 4)),
        ("accelerate launch --num-processes 4 --multi-gpu --main_process_port 29500 train.py", (1, 4)),
        ("env NCCL_DEBUG=INFO torchrun --nproc-per-node 2 train.py", (1, 2)),
        ("torchrun \\\n  --nproc-per-node 2 \\\n  train.py --name 'a; b $HOME'", (1, 2)),
        ("python train.py", (1, 1)),
        ("srun -N 2 --ntasks-per-node 4 python train.py", (2, 4)),
        ("uv run torchrun --nproc-per-node 2 train.py", (1, 2)),
        ("deepspeed --num_nodes 2 --num_gpus=8 --master_port 29500 train.py", (2, 8)),
        ("NCCL_DEBUG=INFO deepspeed --no_ssh --num_accelerators 2 train.py", (1, 2)),
    ],
)
def test_nodes_and_processes(folder: Folder, line: str, expected: tuple[int, int]) -> None:
    assert ranks(folder, line) == expected


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocators_variable_is_its_conf(folder: Folder, name: str) -> None:
    line = f"OMP_NUM_THREADS=8 {name}=expandable_segments:True torchrun train.py --seed 3 --data x"

    found = folder.import_job(torchrun=line, job=folder.own_loop())

    assert found.job.allocator.conf == "expandable_segments:True"
    assert found.not_read == ("OMP_NUM_THREADS", "--data", "--seed")


def test_arguments_of_the_script_are_training_arguments(folder: Folder) -> None:
    folder.write("ds/zero2.json", ZERO_2)
    line = (
        "torchrun --nproc-per-node 2 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --do_train --bf16 True "
        "--per-device-train-batch-size 4 --gradient_accumulation_steps=8 --gradient_checkpointing --learning_rate 2e-5 "
        "--output_dir /tmp/out --report_to wandb tensorboard --block_size 2048 --deepspeed ds/zero2.json"
    )

    found = folder.import_job(torchrun=line)

    train = found.job.train
    assert (train.micro_batch_size, train.gradient_accumulation_steps) == (4, 8)
    assert (train.recompute, train.optimizer.arguments["lr"]) == (Recompute(mode="full"), 2e-5)
    assert zero_of(found.job).dtype == "bfloat16"
    assert found.not_read == ("--model_name_or_path", "--block_size")
    assert found.ignored["the launch line"] == ("do_train", "output_dir", "report_to")


def test_flags_may_be_negated_and_carry_json(folder: Folder) -> None:
    line = (
        "torchrun --nproc-per-node 2 train.py --no_dataloader_pin_memory --fsdp 'full_shard auto_wrap' --bf16 "
        """--fsdp_config '{"version": 2, "cpu_offload": true}'"""
    )

    found = folder.import_job(torchrun=line)

    assert (found.job.parallel.dp_shard.degree, found.job.parallel.dp_shard.offload) == (2, "cpu")
    assert not found.job.train.data_loader.pin_memory


def test_what_other_scripts_have_too_makes_no_trainer(folder: Folder) -> None:
    found = folder.import_job(
        torchrun="torchrun --nproc-per-node 2 train.py --dataloader_num_workers 8", job=folder.own_loop()
    )

    assert found.not_read == ("--dataloader_num_workers",)
    assert found.job.train.data_loader.workers == 0


def test_a_script_without_fields_that_matter_is_no_trainer(folder: Folder) -> None:
    found = folder.import_job(torchrun="torchrun --nproc-per-node 2 train.py --seed 1", job=folder.own_loop())

    assert found.job.parallel.dp_replicate == DpReplicate(degree=2)
    assert found.job.train.loss.name == "cross_entropy"
    assert found.supposed[-1].startswith("train.optimizer, train.loss")


def test_a_line_and_a_file_say_it_together(folder: Folder) -> None:
    path = folder.write("args.json", training_arguments(per_device_train_batch_size=2))
    line = "torchrun --nproc-per-node 2 train.py --per_device_train_batch_size 2 --seed 7"

    assert folder.import_job(training_arguments=path, torchrun=line).job.train.micro_batch_size == 2


def test_options_of_accelerate_launch_are_its_config(folder: Folder) -> None:
    line = (
        "accelerate launch --num_processes 4 --use_fsdp --fsdp_version 2 "
        "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --mixed_precision bf16 --fsdp_offload_params true train.py --x"
    )

    job = folder.import_job(torchrun=line, job=folder.own_loop()).job

    assert (job.parallel.dp_shard.degree, job.parallel.dp_shard.offload, job.train.precision) == (
        4,
        "cpu",
        "fsdp_mixed",
    )


def test_what_deepspeeds_launcher_leaves_open_others_say(folder: Folder) -> None:
    said = folder.refusal(torchrun="deepspeed train.py", job=folder.own_loop())

    assert "cluster.gpus_per_node: how many processes there are (--gpus 8," in said

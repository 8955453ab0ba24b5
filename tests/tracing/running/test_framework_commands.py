"""Commands of training frameworks: the launch lines that they come to, as their own sources have them."""

from __future__ import annotations

import shlex

import pytest

from planner.errors import SpecError
from planner.job.launching.line import LaunchLine, parse

SWIFT = "model: m\nlora_rank: 8\ndataset: [a, b]\nENV: {NPROC_PER_NODE: 2}\n"


def line(command: str, *, gpus: int = 0) -> LaunchLine:
    return parse(shlex.split(command), lambda path: {"sft.yaml": SWIFT}[path], node_gpus=gpus)


@pytest.mark.parametrize(
    ("command", "launcher", "ranks", "program", "arguments"),
    [
        ("tune run --nproc_per_node 8 full_finetune_distributed --config llama3/8B_full lr=1", "torchrun", (1, 8),
         "recipes/full_finetune_distributed.py", "--config recipes/configs/llama3/8B_full.yaml lr=1"),
        ("tune run lora_finetune_single_device --config my.yaml", "python", (1, 1),
         "recipes/lora_finetune_single_device.py", "--config my.yaml"),
        ("tune run --nproc_per_node 2 my/sft.py --config my.yaml", "torchrun", (1, 2), "my.sft", "--config my.yaml"),
        ("llamafactory-cli train x.yaml", "python", (1, 1), "llamafactory.launcher", "x.yaml"),
        ("CUDA_VISIBLE_DEVICES=0,1 lmf train x.yaml a=1", "torchrun", (1, 2), "llamafactory.launcher", "x.yaml a=1"),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train x.yaml", "torchrun", (2, 8),
         "llamafactory.launcher", "x.yaml"),
        ("axolotl train c.yml --num-processes 4 --debug", "accelerate", (1, 4), "axolotl.cli.train", "c.yml --debug"),
        ("axolotl train c.yml --launcher torchrun -- --nproc_per_node=2", "torchrun", (1, 2), "axolotl.cli.train",
         "c.yml"),
        ("axolotl train c.yml --launcher=python", "python", (1, 1), "axolotl.cli.train", "c.yml"),
        ("swift sft --model m", "python", (1, 1), "swift.cli.sft", "--model m"),
        ("NPROC_PER_NODE=4 NNODES=2 swift rlhf --model m", "torchrun", (2, 4), "swift.cli.rlhf", "--model m"),
        ("swift sft sft.yaml --x 1", "torchrun", (1, 2), "swift.cli.sft",
         "--model m --lora_rank 8 --dataset a b --x 1"),
        ("composer -n 8 train.py a.yaml", "torchrun", (1, 8), "train.py", "a.yaml"),
        ("composer --nproc 4 --world_size 8 -m pkg.train", "torchrun", (2, 4), "pkg.train", ""),
        ("fabric run --devices=4 --strategy ddp t.py --lr 1", "torchrun", (1, 4), "t.py", "--lr 1"),
        ("lightning run model --devices 0,2 --num-nodes 2 t.py", "torchrun", (2, 2), "t.py", ""),
        ("trl sft --model_name m --num_processes 4", "accelerate", (1, 4), "trl.scripts.sft", "--model_name m"),
    ],
)  # fmt: skip
def test_what_they_start(command: str, launcher: str, ranks: tuple[int, int], program: str, arguments: str) -> None:
    found = line(command)

    assert (found.launcher.value, found.nodes, found.processes_per_node) == (launcher, *ranks)
    assert (found.program, " ".join(found.arguments)) == (program, arguments)


def test_variables_that_they_set_matter() -> None:
    assert line("llamafactory-cli train x.yaml", gpus=2).environment == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    }  # fmt: skip
    assert line("fabric run --precision bf16-mixed t.py").environment == {
        "LT_CLI_USED": "1", "LT_DEVICES": "1", "LT_NUM_NODES": "1", "LT_PRECISION": "bf16-mixed",
    }  # fmt: skip


def test_a_note_says_what_is_planned() -> None:
    assert line("axolotl train c.yml", gpus=2).notes == (
        "axolotl train starts accelerate launch -m axolotl.cli.train c.yml",
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("tune download x", "`tune download` starts no training that is known here"),
        ("tune run --nproc_per_node 2", "`tune run` starts no training"),
        ("llamafactory-cli webui", "`llamafactory-cli webui` starts no training"),
        (
            "FORCE_TORCHRUN=1 llamafactory-cli train x.yaml",
            "how many ranks there are is not said.*\n.*NPROC_PER_NODE=NUMBER",
        ),
        ("axolotl train c.yml", "--num_processes is missing"),
        ("axolotl train c.yml --sweep s.yml", "other jobs come of it"),
        ("axolotl train c.yml --launcher mpi", "--launcher is 'mpi'"),
        ("swift web-ui", "`swift web-ui` starts no training"),
        ("composer train.py", "how many ranks there are is not said"),
        ("composer -n 4 -c train.sh", "composer has --command_mode"),
        ("fabric consolidate x", "`fabric consolidate` starts no training"),
        ("trl vllm-serve --model m", "`trl vllm-serve` starts no training"),
    ],
)
def test_what_is_not_read_is_named(command: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        line(command)

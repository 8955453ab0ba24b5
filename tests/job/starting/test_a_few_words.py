"""A model's name and a few options are a job: what each of them means, and what is taken for what nobody says."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import cli
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job import named_gpus
from planner.job.loading import load_yaml
from planner.job.named_gpus import GpuCount
from planner.units import GIB

FIRST_LINE = "{} --gpus 4x{} --lora r=16 --seq 4096 --batch 2 --fsdp"
MODELS = [
    "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-v0.3", "google/gemma-2-9b",
    "microsoft/phi-4", "Qwen/Qwen2.5-72B-Instruct", "HuggingFaceTB/SmolLM2-1.7B", "qwen3-0.6b", "tinyllama_v1.1",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
]  # fmt: skip
GPUS = {
    "H100": "H100-SXM-80GB",
    "a100": "A100-SXM-80GB",
    "4090": "RTX4090-24GB",
    "NVIDIA-L40S": "L40S-48GB",
    "H200": "H200-SXM-141GB",
}
ZERO = {
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
}  # fmt: skip
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}


def said_and_printed(line: str, *more: str) -> tuple[list[str], str]:
    shown, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        code = cli.main(["spec", *shlex.split(line), *more])
    assert code == 0, said.getvalue()
    return said.getvalue().replace("\n  ", " ").splitlines(), shown.getvalue()


def spec_of(line: str) -> Any:
    return yaml.safe_load(said_and_printed(line)[1])


@pytest.mark.parametrize(("model", "gpu"), list(zip(MODELS, itertools.cycle(GPUS), strict=False)))
def test_the_first_line_works_for_models_and_gpus_as_people_call_them(model: str, gpu: str) -> None:
    _, printed = said_and_printed(FIRST_LINE.format(model, gpu))

    job = load_yaml(printed)
    assert job.cluster.gpu.name == GPUS[gpu]
    assert job.model.hf_config is not None
    assert job.model.adapter is not None
    assert (job.model.adapter.r, job.train.sequence_length, job.train.micro_batch_size) == (16, 4096, 2)
    assert (job.parallel.dp_shard.degree, job.cluster.gpus_per_node) == (4, 4)


def test_the_spec_says_what_the_first_line_means() -> None:
    said, printed = said_and_printed(FIRST_LINE.format("Qwen/Qwen3-8B", "4090"))

    assert yaml.safe_load(printed) == {
        "metadata": {"name": "qwen3-8b"},
        "model": {"hf_config": "Qwen/Qwen3-8B", "parameter_dtype": "bfloat16", "adapter": {"r": 16}},
        "train": {"micro_batch_size": 2, "sequence_length": 4096, "precision": "fsdp_mixed"},
        "parallel": {"dp_shard": 4},
        "cluster": {"gpus_per_node": 4, "gpu": "RTX4090-24GB"},
    }
    assert said == [
        "taken: train.precision fsdp_mixed (--precision bf16, fp16 or fp32)",
        "taken: the model in bfloat16 (--set model.parameter_dtype=float32)",
    ]


def test_what_nobody_says_is_taken_as_most_people_train_and_said() -> None:
    said, printed = said_and_printed("gpt2 --gpus 2xV100-32GB")

    assert yaml.safe_load(printed) == {
        "metadata": {"name": "gpt2"},
        "model": {"hf_config": "openai-community/gpt2"},
        "train": {"sequence_length": 1024, "precision": "fp16_autocast"},
        "parallel": {"dp_replicate": 2},
        "cluster": {"gpus_per_node": 2, "gpu": "V100-SXM2-32GB"},
    }
    assert said == [
        "taken: DDP over 2 GPUs, each with the whole model (--fsdp shards it)",
        "taken: sequences of 1024 tokens (--seq)",
        "taken: train.precision fp16_autocast (--precision bf16, fp16 or fp32)",
        "note: the GPU V100-32GB is taken as V100-SXM2-32GB; V100-PCIE-32GB has the same memory",
    ]


@pytest.mark.parametrize(
    ("line", "section", "said"),
    [
        ("--gpus 16xH100 --tp 8 --fsdp", "parallel", {"dp_shard": 2, "tp": 8}),
        ("--gpus 16xH100 --tp 8 --fsdp", "cluster", {"nodes": 2, "gpus_per_node": 8, "gpu": "H100-SXM-80GB"}),
        ("--gpus 4x4xH100 --ddp 4 --fsdp 4", "parallel", {"dp_replicate": 4, "dp_shard": 4}),
        ("--gpus 8xH100 --fsdp --offload", "parallel", {"dp_shard": {"degree": 8, "offload": "cpu"}}),
        ("--gpus H100 --optimizer adamw_torch_fused", "train",
         {"sequence_length": 2048, "precision": "bf16_autocast", "optimizer": {"name": "AdamW", "fused": True}}),
        ("--gpus H100 --gradient-checkpointing --accumulate 8 --precision fp32 --seq 4k", "train",
         {"sequence_length": 4096, "gradient_accumulation_steps": 8, "recompute": "full"}),
        ("--gpus H100 --fsdp --recompute 2 --seq 1k", "train",
         {"sequence_length": 1024, "precision": "bf16_autocast", "recompute": {"every": 2}}),
        ("--gpus H100 --recompute selective --seq 1k", "train",
         {"sequence_length": 1024, "precision": "bf16_autocast", "recompute": "selective"}),
        ("--gpus 2xH100 --zero 3 --batch 2 --accumulate 4 --recompute --offload", "trainer",
         {"arguments": {
             "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "gradient_checkpointing": True,
             "bf16": True, "deepspeed": {**ZERO, "zero_optimization": {"stage": 3, **OFFLOAD}, "optimizer": ADAMW}}}),
        ("--gpus 2xV100 --zero 1 --optimizer sgd", "trainer",
         {"arguments": {"optim": "sgd", "fp16": True, "deepspeed": {**ZERO, "zero_optimization": {"stage": 1}}}}),
        ("--gpus 2xH100 --zero 2 --precision fp32 --set trainer.arguments.deepspeed.optimizer.type=Adam", "trainer",
         {"arguments": {"bf16": False, "deepspeed": {**ZERO, "zero_optimization": {"stage": 2},
                                                     "optimizer": {**ADAMW, "type": "Adam"}}}}),
        ("--gpus H100 --qlora 'r=8, alpha=16, target=q_proj+v_proj'", "model",
         {"hf_config": "Qwen/Qwen3-0.6B", "parameter_dtype": "bfloat16",
          "adapter": {"kind": "qlora", "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}}),
        ("--gpus H100 --set train.optimizer.lr=0.1 --set train.recompute.every=2", "train",
         {"sequence_length": 2048, "precision": "bf16_autocast", "optimizer": {"name": "AdamW", "lr": 0.1},
          "recompute": {"every": 2}}),
    ],
)  # fmt: skip
def test_each_option_is_its_keys(line: str, section: str, said: dict[str, Any]) -> None:
    assert spec_of(f"Qwen/Qwen3-0.6B {line}")[section] == said


@pytest.mark.parametrize("options", [
    "--gpu '{total_bytes: 9.5GiB, arch: sm_75}'", "--gpus '1x{total_bytes: 9.5GiB, arch: sm_75}'",
    "--gpus T4 --set cluster.gpu='{total_bytes: 9.5GiB, arch: sm_75}'",
])  # fmt: skip
def test_a_gpu_that_the_catalog_does_not_have_is_given_by_its_figures(options: str) -> None:
    found = spec_of(f"openai-community/gpt2 {options}")

    assert found["cluster"]["gpu"] == {"total_bytes": 19 * GIB // 2, "arch": "sm_75"}
    assert found["train"]["precision"] == "fp16_autocast"


def test_pictures_need_no_sequence() -> None:
    assert "sequence_length" not in spec_of("microsoft/resnet-50 --gpus T4")["train"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("4xH100", GpuCount(1, 4, "H100")),
        ("4 x H100", GpuCount(1, 4, "H100")),
        ("4 H100", GpuCount(1, 4, "H100")),
        ("H100:4", GpuCount(1, 4, "H100")),
        ("H100x4", GpuCount(1, 4, "H100")),
        ("4*a100-80gb", GpuCount(1, 4, "a100-80gb")),
        ("2x8xH100", GpuCount(2, 8, "H100")),
        ("4090", GpuCount(1, 1, "4090")),
        ("2x4090", GpuCount(1, 2, "4090")),
        ("4090x2", GpuCount(1, 2, "4090")),
        ("8xMI300X", GpuCount(1, 8, "MI300X")),
        ("RTX 4090", GpuCount(1, 1, "RTX 4090")),
        ("6", GpuCount(1, 6, "")),
        ("12xH100", GpuCount(1, 12, "H100")),
        ("32", GpuCount(4, 8, "", "32 GPUs are 4 nodes of 8 (--gpus 4x8xGPU)")),
    ],
)
def test_gpus_are_counted_and_named_in_one_word(written: str, found: GpuCount) -> None:
    assert named_gpus.parse(written) == found


@pytest.mark.parametrize("written", ["", "0", "0x0xH100", "-1", "x", "4x", "x4", "99999999xH100", "999999x99999xH100"])
def test_a_word_that_says_no_number_of_gpus_is_refused(written: str) -> None:
    with pytest.raises(SpecError):
        named_gpus.parse(written)


def test_options_replace_what_a_spec_says(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(said_and_printed("Qwen/Qwen3-0.6B --gpus 4xH100 --fsdp")[1], encoding="utf-8")

    found = spec_of(f"{path} --gpus 8xA100-40GB --fsdp --batch 4 --set train.optimizer=SGD")

    assert found["cluster"] == {"gpus_per_node": 8, "gpu": "A100-SXM-40GB"}
    assert (found["parallel"], found["train"]["micro_batch_size"]) == ({"dp_shard": 8}, 4)
    assert found["train"]["optimizer"] == "SGD"


def test_a_key_of_the_config_can_be_set() -> None:
    found = spec_of("Qwen/Qwen3-0.6B --gpus H100 --set model.hf_config.num_hidden_layers=2")

    assert found["model"]["hf_config"]["num_hidden_layers"] == 2


def test_a_bundle_is_set_like_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(said_and_printed("Qwen/Qwen3-0.6B --gpus H100", "--bundle")[1], encoding="utf-8")
    _, printed = said_and_printed(str(path), "--set", "cluster.gpu.name=T4", "--bundle")

    known = catalog.gpus()["T4-16GB"]
    assert json.loads(printed)["cluster"]["gpu"] == {
        "name": known.name, "total_bytes": known.total_bytes, "arch": known.arch,
    }  # fmt: skip

"""Files of torchtitan, Axolotl, LLaMA-Factory and PEFT, said in the keys of a spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import pytest
from importing_folder import LLAMA, TORCHRUN, ZERO_2, Folder

from planner.errors import SpecError
from planner.job.importers.job_import import ImportedJob
from planner.job.importers.key_tables import tables
from planner.job.loading import document
from planner.job.schema import (
    Adapter,
    Decoder,
    DpReplicate,
    DpShard,
    Eval,
    Loss,
    Optimizer,
    Pp,
    Recompute,
    Tp,
    Train,
)

TITAN = """
[job]
description = "Llama 3 8B training"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
AXOLOTL = """
base_model: meta-llama/Llama-3.2-1B
load_in_4bit: true
datasets: [{path: data.jsonl, type: alpaca}]
adapter: qlora
sequence_len: 2048
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_torch
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
wandb_project:
"""
FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
"""
ADAPTER: Mapping[str, Any] = {
    "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-0.6B", "r": 16, "lora_alpha": 32, "lora_dropout": 0.1,
    "target_modules": ["v_proj", "q_proj"], "bias": "none",
}  # fmt: skip
OPTIMIZERS = tables()["TrainingArguments"].keys["optim"].values
LINEAR = ("all-linear",)
EIGHT = "torchrun --nproc-per-node 8 train.py"
TRL_RECIPE = """
model_name_or_path: Qwen/Qwen3-0.6B
torch_dtype: bfloat16
attn_implementation: flash_attention_2
use_peft: true
load_in_4bit: true
lora_r: 8
lora_target_modules: [q_proj, v_proj]
max_seq_length: 512
packing: true
chars_per_token: 3.6
per_device_train_batch_size: 2
bf16: true
"""
OLD_TITAN = """
[job]
dump_folder = "out"
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
tokenizer_path = "tokenizer.model"
[optimizer]
lr = 3e-4
fused = true
[training]
batch_size = 1
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 1
compile = true
[experimental]
pipeline_parallel_degree = 1
[float8]
enable_fsdp_float8_all_gather = false
filter_fqns = ["output"]
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def imported(folder: Folder, source: str, written: str | Mapping[str, Any], **given: Any) -> ImportedJob:
    """The job of one file, on 8 ranks for torchtitan and on two for others; the model and the length are its own."""
    path = folder.write(
        f"{source}.{'json' if source == 'peft' else 'toml' if source == 'torchtitan' else 'yaml'}", written
    )
    line = EIGHT if source == "torchtitan" else TORCHRUN
    return folder.import_job(**{source: path, "torchrun": line, "model": None, "sequence_length": None, **given})


def refused(folder: Folder, source: str, written: str | Mapping[str, Any], **given: Any) -> list[str]:
    """The lines of the message."""
    with pytest.raises(SpecError) as caught:
        imported(folder, source, written, **given)
    return str(caught.value).replace(f"{folder.path}/", "").splitlines()


SHARDED = DpShard(degree=8, keep_last=True, groups=("embedding", "norm head"))
ADAMW = {"lr": 3e-4, "eps": 1e-8, "weight_decay": 0.1, "betas": [0.9, 0.95], "foreach": False, "fused": True}
LAYOUT = "[parallelism]\ndata_parallel_shard_degree = -1"
FULL = FACTORY.replace("finetuning_type: lora", "finetuning_type: full")


@pytest.mark.parametrize(
    ("source", "written", "expected"),
    [
        # `make beside-plans` sets such specs beside torchtitan's Trainer.
        ("torchtitan", TITAN, {
            "model.decoder": Decoder(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256),
            "train": Train(
                sequence_length=8192, precision="fsdp_mixed", recompute=Recompute(mode="selective"),
                gradient_clipping=1.0, optimizer=Optimizer(name="AdamW", arguments=ADAMW),
            ),
            "parallel.dp_shard": SHARDED,
        }),
        ("torchtitan", TITAN.replace(LAYOUT, "[parallelism]\ntensor_parallel_degree = 2"), {
            "parallel.dp_shard": dataclasses.replace(SHARDED, degree=4),
            "parallel.tp": Tp(degree=2, sequence_parallel=True, loss_parallel=True),
        }),
        ("torchtitan", TITAN.replace(
            LAYOUT, '[parallelism]\ndata_parallel_shard_degree = 8\nfsdp_reshard_after_forward = "always"'
        ), {"parallel.dp_shard": dataclasses.replace(SHARDED, keep_last=False)}),
        ("torchtitan", TITAN.replace("local_batch_size = 1", "local_batch_size = 8").replace(
            LAYOUT, '[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"'
        ), {
            "parallel.dp_shard": DpShard(degree=2, keep_last=True, reshard_after_forward=False),
            "parallel.pp": Pp(degree=4, schedule="Interleaved1F1B"),
        }),
        ("torchtitan", TITAN.replace(
            LAYOUT, "[parallelism]\ndata_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8"
        ), {"parallel.dp_replicate": DpReplicate(degree=8, bucket_cap_mb=100.0)}),
        ("torchtitan", "", {
            "model.decoder.layers": 6, "train.micro_batch_size": 8, "train.sequence_length": 2048,
            "train.recompute": Recompute(mode="every", every=2),
        }),
        ("torchtitan", TITAN.replace("seq_len = 8192", "seq_len = 8192\nglobal_batch_size = 32"),
         {"train.gradient_accumulation_steps": 4}),
        ("torchtitan", TITAN + "[validation]\nenable = true\nlocal_batch_size = 2\nseq_len = 8192\nfreq = 50\n",
         {"train.eval": Eval(micro_batch_size=2, every=50)}),
        ("axolotl", AXOLOTL, {
            "model.adapter": Adapter(kind="qlora", r=32, alpha=16, dropout=0.05, target_modules=LINEAR),
            "model.parameter_dtype": "bfloat16", "train.precision": "bf16_autocast", "train.micro_batch_size": 2,
            "train.gradient_accumulation_steps": 4, "train.sequence_length": 2048,
            "train.recompute": Recompute(mode="full"), "train.loss": Loss(name="model"),
            "train.optimizer.name": "AdamW",
        }),
        ("llama_factory", FACTORY, {
            "model.adapter": Adapter(r=8, alpha=16, target_modules=LINEAR), "model.parameter_dtype": "bfloat16",
            "train.precision": "bf16_autocast", "train.sequence_length": 1024,
            "train.recompute": Recompute(mode="full"), "train.micro_batch_size": 1,
            "train.gradient_accumulation_steps": 8,
        }),
        ("llama_factory", FULL + "disable_gradient_checkpointing: true",
         {"model.parameter_dtype": "float32", "model.adapter": None, "train.recompute": Recompute()}),
        ("llama_factory", FACTORY + "quantization_bit: 4\nquantization_method: bitsandbytes\n",
         {"model.adapter": Adapter(kind="qlora", r=8, alpha=16, target_modules=LINEAR)}),
        ("training_arguments", TRL_RECIPE, {
            "model.adapter": Adapter(kind="qlora", r=8, alpha=32, dropout=0.05, target_modules=("q_proj", "v_proj")),
            "train.sequence_length": 512, "train.micro_batch_size": 2, "model.parameter_dtype": "bfloat16",
        }),
    ],
)  # fmt: skip
def test_what_a_recipe_comes_to(folder: Folder, source: str, written: str, expected: Mapping[str, Any]) -> None:
    job = imported(folder, source, written).job

    assert {path: attrgetter(path)(job) for path in expected} == expected


@pytest.mark.parametrize(
    ("source", "written", "ignored", "supposed"),
    [
        ("axolotl", AXOLOTL, ("datasets", "sample_packing"), ()),
        ("llama_factory", FACTORY, ("template",),
         ("recomputation without reentrancy, which LLaMA-Factory has under FSDP alone",)),
        ("training_arguments", TRL_RECIPE, ("packing", "chars_per_token"), None),
    ],
)  # fmt: skip
def test_what_does_not_matter_and_what_is_supposed_is_said(
    folder: Folder, source: str, written: str, ignored: tuple[str, ...], supposed: tuple[str, ...] | None
) -> None:
    found = imported(folder, source, written)

    assert set(next(iter(found.ignored.values()))) == set(ignored)
    assert supposed is None or found.supposed == supposed


@pytest.mark.parametrize(
    ("source", "written", "line"),
    [
        ("torchtitan", TITAN + "[training]", "no TOML: Cannot declare ('training',) twice (at line 17, column 10)"),
        ("torchtitan", TITAN + "[trainer]\nx = 1", "unknown key `trainer.x`"),
        ("torchtitan", TITAN + "[fault_tolerance]\nenable = true",
         "fault_tolerance.enable is true: torchft is not planned"),
        ("torchtitan", TITAN + "[debug]\ndeterministic = true",
         "debug.deterministic is true: it changes the workspaces and kernels of CUDA"),
        ("torchtitan", TITAN + '[compile]\nenable = "yes"', 'compile.enable is "yes"'),
        ("axolotl", AXOLOTL + "plugins: [axolotl.integrations.liger.LigerPlugin, axolotl.integrations.spectrum.S]",
         "19:10: plugins is a list: other plugins are not planned"),
        ("axolotl", AXOLOTL + "load_in_8bit: true",
         "19:15: load_in_8bit is true: weights in eight bits are not planned; `planner run` plans the program as it"
         " is, load_in_4bit is planned"),
        ("axolotl", AXOLOTL + "sequence_lenn: 4", "19:1: unknown key `sequence_lenn`"),
        ("axolotl", AXOLOTL + "rl: dpo", '19:5: rl is "dpo": what preferences add is not planned'),
        ("axolotl", AXOLOTL + "peft_use_dora: true", "peft_use_dora stands beside qlora"),
        ("axolotl", AXOLOTL.replace("adamw_torch", "OPT"),
         '14:12: optimizer is "OPT": others are not planned; write train.optimizer in JOB.yaml'),
        ("llama_factory", FACTORY + "quantization_bit: 8", "14:19: quantization_bit is 8"),
        ("llama_factory", FACTORY + "use_galore: true", "14:13: use_galore is true: GaLore is not planned"),
        ("llama_factory", FACTORY + "lora_ranks: 4", "14:1: unknown key `lora_ranks`"),
        ("peft", {**ADAPTER, "peft_type": "IA3"}, '2:16: peft_type is "IA3": other adapters are not planned'),
        ("peft", {**ADAPTER, "target_modules": ".*_proj"}, '7:21: target_modules is ".*_proj"'),
        ("peft", {**ADAPTER, "modules_to_save": ["lm_head"]},
         "12:22: modules_to_save is a list: modules that are trained whole beside the adapter are not planned"),
        ("peft", {**ADAPTER, "r": "16"}, '4:8: r is "16"'),
        ("peft", {**ADAPTER, "rank": 4}, "12:3: unknown key `rank`"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_say(folder: Folder, source: str, written: Any, line: str) -> None:
    file, _, said = refused(folder, source, written)[0].partition(":")

    assert file.startswith(source)
    assert said.strip() == line


def test_all_that_is_wrong_is_said_at_once_with_the_optimizers_that_are_planned(folder: Folder) -> None:
    wrong = AXOLOTL.replace("adamw_torch", "adamw_bnb_8bits").replace("0.0002", "fast") + "loraa: 1"

    assert refused(folder, "axolotl", wrong)[:4] == [
        "3 keys cannot be planned as they are:",
        '    axolotl.yaml:14:12: optimizer is "adamw_bnb_8bits": others are not planned; write train.optimizer in'
        " JOB.yaml (did you mean `adamw_bnb_8bit`?)",
        '    axolotl.yaml:15:16: learning_rate is "fast" (write it without quotes)',
        "    axolotl.yaml:19:1: unknown key `loraa` (delete it, or say what it decides in JOB.yaml)",
    ]
    allowed = refused(folder, "axolotl", AXOLOTL.replace("adamw_torch", "OPT"))[1]
    assert allowed == f"  allowed: {', '.join(OPTIMIZERS)}"


def test_a_model_that_torchtitan_alone_knows_is_asked_for(folder: Folder) -> None:
    message = refused(folder, "torchtitan", TITAN.replace("llama3", "deepseek_v3"))

    assert any("model: its config (--model CONFIG.json" in line for line in message)


def test_torchtitans_first_versions_are_read_as_the_present_one(folder: Folder) -> None:
    new = imported(folder, "torchtitan", TITAN + "[compile]\nenable = true\n").job
    old = imported(folder, "torchtitan", OLD_TITAN).job

    assert (old.model, old.train, old.parallel) == (new.model, new.train, new.parallel)


def test_axolotl_shards_as_accelerate_does(folder: Folder) -> None:
    sharded = (
        "micro_batch_size: 1\nsequence_len: 128\nbf16: true\nfsdp_version: 2\nfsdp_config: {offload_params: true}\n"
    )
    job = imported(folder, "axolotl", sharded, model=folder.write("config.json", LLAMA)).job

    assert (job.parallel.dp_shard.degree, job.parallel.dp_shard.offload) == (2, "cpu")
    assert (job.model.parameter_dtype, job.train.precision) == ("float32", "fsdp_mixed")


LIGER = "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\nliger_rms_norm: true"
CUT = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]"
SWANLAB = "plugins: [axolotl.integrations.swanlab.SwanLabPlugin]"


@pytest.mark.parametrize(
    ("source", "written", "times"),
    [
        ("axolotl", AXOLOTL + LIGER, 1),
        ("axolotl", AXOLOTL + CUT, 1),
        ("axolotl", AXOLOTL + SWANLAB, 0),
        ("llama_factory", FACTORY + "enable_liger_kernel: true", 1),
        ("llama_factory", FACTORY + "enable_liger_kernel: false", 0),
        ("training_arguments", "use_liger: true\nmax_seq_length: 512", 1),
    ],
)
def test_kernels_that_keep_less_are_planned_without_and_people_are_told(
    folder: Folder, source: str, written: str, times: int
) -> None:
    given = {source: folder.write("recipe.yaml", written), "torchrun": TORCHRUN, "sequence_length": None}

    supposed = folder.import_job(**given).supposed

    assert (
        sum("Liger or cut cross entropy, which keep less: the plan is an upper bound" in each for each in supposed)
        == times
    )


def test_the_copy_of_a_mirror_is_the_model_whose_name_it_has_and_that_of_anybody_else_is_asked_about(
    folder: Folder,
) -> None:
    found = imported(folder, "axolotl", AXOLOTL.replace("meta-llama/", "NousResearch/"))
    other = refused(folder, "axolotl", AXOLOTL.replace("meta-llama/", "somebody/"))

    assert document(found.job)["model"]["hf_config"]["vocab_size"] == 128256
    told = "NousResearch/Llama-3.2-1B is meta-llama/Llama-3.2-1B, whose name it has (--model CONFIG.json for another)"
    assert found.supposed[0] == told
    assert any("did you mean `meta-llama/Llama-3.2-1B` (--model meta-llama/Llama-3.2-1B)?" in line for line in other)


def test_all_linear_layers_but_those_of_a_vision_tower_have_to_be_named(folder: Folder) -> None:
    model = folder.write("other.json", {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {}})

    message = refused(folder, "llama_factory", FACTORY, model=model)[0]

    assert "all linear layers but those of the vision tower are adapted" in message


def test_an_old_name_is_read_and_a_config_of_deepspeed_may_be_given_by_itself(folder: Folder) -> None:
    """Recipes name it as from the folder in which their program is started."""
    old = FULL + "deepspeed: examples/ds_z2.json\nevaluation_strategy: steps\neval_steps: 2\n"
    config = folder.write("elsewhere.json", ZERO_2)

    found, message = imported(folder, "llama_factory", old, deepspeed=config), refused(folder, "llama_factory", old)

    assert found.job.train.eval == Eval(micro_batch_size=8, every=2)
    assert found.job.parallel.deepspeed is not None
    assert message[-1].endswith("or give it by itself where it is DeepSpeed's (--from-deepspeed FILE)")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("adamw_bnb_8bit", {"name": "bitsandbytes.AdamW8bit", "embeddings_in_32_bits": True}),
        ("paged_adamw_8bit", {"name": "bitsandbytes.PagedAdamW8bit", "embeddings_in_32_bits": True}),
        ("paged_adamw_32bit", {"name": "bitsandbytes.PagedAdamW"}),
        ("lion_8bit", {"name": "bitsandbytes.Lion8bit", "embeddings_in_32_bits": True}),
        ("adafactor", {"name": "transformers.Adafactor", "scale_parameter": False, "relative_step": False}),
    ],
)
def test_the_optimizers_of_lora_recipes_are_imported(folder: Folder, name: str, optimizer: Mapping[str, Any]) -> None:
    found = imported(folder, "axolotl", AXOLOTL.replace("adamw_torch", name)).job.train.optimizer

    assert {"name": found.name, **found.arguments}.items() >= {**optimizer, "lr": 2e-4, "weight_decay": 0.0}.items()


def test_a_batch_of_axolotls_first_versions_is_accumulated(folder: Folder) -> None:
    old = AXOLOTL.replace("gradient_accumulation_steps: 4", "batch_size: 16\nwandb_anything: x\nlora_on_cpu: true")

    found = imported(folder, "axolotl", old)

    assert found.job.train.gradient_accumulation_steps == 8
    assert next(iter(found.ignored.values())) == ("datasets", "sample_packing", "wandb_anything", "lora_on_cpu")


def test_an_adapter_is_a_source_beside_others(folder: Folder) -> None:
    folder.write("adapter/adapter_config.json", ADAPTER)

    job = folder.import_job(peft=folder.path / "adapter", torchrun=TORCHRUN, job=folder.own_loop(), model=None).job

    assert job.model.adapter == Adapter(r=16, alpha=32, dropout=0.1, target_modules=("q_proj", "v_proj"))
    assert document(job)["model"]["hf_config"]["model_type"] == "qwen3"

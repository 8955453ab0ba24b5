"""Files of torchtitan, Axolotl, LLaMA-Factory and PEFT, said in the keys of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from importing_folder import LLAMA, TORCHRUN, ZERO_2, Folder

from planner.job.importers.key_tables import tables
from planner.job.loading import document
from planner.job.schema import (
    Adapter,
    Decoder,
    DpReplicate,
    DpShard,
    Eval,
    Job,
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


def titan(folder: Folder, changed: str = "", **given: Any) -> Job:
    path = folder.write("job.toml", TITAN + changed)
    return folder.import_job(torchtitan=path, torchrun=EIGHT, model=None, sequence_length=None, **given).job


def test_torchtitans_trainer_is_the_step_that_is_proven_to_be_its_own(folder: Folder) -> None:
    """`tests/torchtitan_on_paper.py` sets such a spec beside torchtitan's Trainer."""
    job = titan(folder)

    assert job.model.decoder == Decoder(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    assert job.train == Train(
        sequence_length=8192,
        precision="fsdp_mixed",
        recompute=Recompute(mode="selective"),
        gradient_clipping=1.0,
        optimizer=Optimizer(
            name="AdamW",
            arguments={
                "lr": 3e-4, "eps": 1e-8, "weight_decay": 0.1, "betas": [0.9, 0.95], "foreach": False, "fused": True,
            },
        ),
    )  # fmt: skip
    assert job.parallel.dp_shard == DpShard(degree=8, keep_last=True, groups=("embedding", "norm head"))


@pytest.mark.parametrize(
    ("changed", "parallel"),
    [
        (
            "[parallelism]\ntensor_parallel_degree = 2",
            {"dp_shard": DpShard(degree=4, keep_last=True, groups=("embedding", "norm head")),
             "tp": Tp(degree=2, sequence_parallel=True, loss_parallel=True)},
        ),
        (
            '[parallelism]\ndata_parallel_shard_degree = 8\nfsdp_reshard_after_forward = "always"',
            {"dp_shard": DpShard(degree=8, groups=("embedding", "norm head"))},
        ),
        (
            '[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"',
            {"dp_shard": DpShard(degree=2, keep_last=True, reshard_after_forward=False),
             "pp": Pp(degree=4, schedule="Interleaved1F1B")},
        ),
        (
            "[parallelism]\ndata_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8",
            {"dp_replicate": DpReplicate(degree=8, bucket_cap_mb=100.0)},
        ),
    ],
)  # fmt: skip
def test_torchtitans_layouts(folder: Folder, changed: str, parallel: Mapping[str, Any]) -> None:
    written = TITAN.replace("[parallelism]\ndata_parallel_shard_degree = -1", changed)
    path = folder.write("job.toml", written.replace("local_batch_size = 1", "local_batch_size = 8"))

    job = folder.import_job(torchtitan=path, torchrun=EIGHT, model=None, sequence_length=None).job

    assert {name: getattr(job.parallel, name) for name in parallel} == parallel


def test_torchtitans_defaults_are_those_of_an_empty_file(folder: Folder) -> None:
    job = folder.import_job(
        torchtitan=folder.write("job.toml", ""), torchrun=EIGHT, model=None, sequence_length=None
    ).job

    assert job.model.decoder is not None
    assert job.model.decoder.layers == 6
    assert (job.train.micro_batch_size, job.train.sequence_length) == (8, 2048)
    assert (job.train.recompute, job.train.optimizer.arguments["lr"]) == (Recompute(mode="every", every=2), 8e-4)


def test_a_global_batch_is_accumulated(folder: Folder) -> None:
    path = folder.write("job.toml", TITAN.replace("seq_len = 8192", "seq_len = 8192\nglobal_batch_size = 32"))

    job = folder.import_job(torchtitan=path, torchrun=EIGHT, model=None, sequence_length=None).job

    assert job.train.gradient_accumulation_steps == 4


def test_torchtitans_validation_is_an_evaluation(folder: Folder) -> None:
    job = titan(folder, "[validation]\nenable = true\nlocal_batch_size = 2\nseq_len = 8192\nfreq = 50\n")

    assert job.train.eval == Eval(micro_batch_size=2, every=50)


def test_a_model_that_torchtitan_alone_knows_is_asked_for(folder: Folder) -> None:
    path = folder.write("job.toml", TITAN.replace("llama3", "deepseek_v3"))

    message = folder.refusal(torchtitan=path, torchrun=EIGHT, model=None, sequence_length=None)

    assert "model: its config (--model CONFIG.json" in message


@pytest.mark.parametrize(
    ("changed", "first_line"),
    [
        ("[training]", "job.toml: no TOML: Cannot declare ('training',) twice (at line 17, column 10)"),
        ("[trainer]\nx = 1", "job.toml: unknown key `trainer.x`"),
        ('[fault_tolerance]\nenable = true', "job.toml: fault_tolerance.enable is true: torchft is not planned"),
        ("[debug]\ndeterministic = true",
         "job.toml: debug.deterministic is true: it changes the workspaces and kernels of CUDA"),
        ('[compile]\nenable = "yes"', 'job.toml: compile.enable is "yes"'),
    ],
)  # fmt: skip
def test_what_torchtitan_may_not_say(folder: Folder, changed: str, first_line: str) -> None:
    path = folder.write("job.toml", TITAN + changed)

    message = folder.refusal(torchtitan=path, torchrun=EIGHT, model=None, sequence_length=None)

    assert message.splitlines()[0] == first_line


def test_axolotl_is_the_trainer_with_an_adapter(folder: Folder) -> None:
    path = folder.write("axolotl.yaml", AXOLOTL)

    found = folder.import_job(axolotl=path, torchrun=TORCHRUN, model=None, sequence_length=None)

    job = found.job
    assert job.model.adapter == Adapter(kind="qlora", r=32, alpha=16, dropout=0.05, target_modules=LINEAR)
    assert (job.model.parameter_dtype, job.train.precision) == ("bfloat16", "bf16_autocast")
    assert (job.train.micro_batch_size, job.train.gradient_accumulation_steps) == (2, 4)
    assert (job.train.sequence_length, job.train.recompute) == (2048, Recompute(mode="full"))
    assert (job.train.loss, job.train.optimizer.name) == (Loss(name="model"), "AdamW")
    assert found.ignored == {str(path): ("datasets", "sample_packing")}


def test_axolotl_shards_as_accelerate_does(folder: Folder) -> None:
    sharded = (
        "micro_batch_size: 1\nsequence_len: 128\nbf16: true\nfsdp_version: 2\nfsdp_config:\n  offload_params: true\n"
    )
    job = folder.import_job(axolotl=folder.write("axolotl.yaml", sharded), torchrun=TORCHRUN).job

    assert (job.parallel.dp_shard.degree, job.parallel.dp_shard.offload) == (2, "cpu")
    assert (job.model.parameter_dtype, job.train.precision) == ("float32", "fsdp_mixed")


@pytest.mark.parametrize(
    ("changed", "first_line"),
    [
        ("plugins: [axolotl.integrations.liger.LigerPlugin, axolotl.integrations.spectrum.SpectrumPlugin]",
         "axolotl.yaml:19:10: plugins is a list: other plugins are not planned"),
        ("load_in_8bit: true",
         "axolotl.yaml:19:15: load_in_8bit is true: weights in eight bits are not planned; `planner run` plans the"
         " program as it is, load_in_4bit is planned"),
        ("sequence_lenn: 4", "axolotl.yaml:19:1: unknown key `sequence_lenn`"),
        ("rl: dpo", 'axolotl.yaml:19:5: rl is "dpo": what preferences add is not planned'),
        ("peft_use_dora: true", "axolotl.yaml: peft_use_dora stands beside qlora"),
    ],
)  # fmt: skip
def test_what_axolotl_may_not_say(folder: Folder, changed: str, first_line: str) -> None:
    message = folder.refusal(axolotl=folder.write("axolotl.yaml", AXOLOTL + changed), torchrun=TORCHRUN, model=None)

    assert message.splitlines()[0] == first_line


def test_llama_factory_is_the_trainer_with_its_own_defaults(folder: Folder) -> None:
    path = folder.write("train.yaml", FACTORY)

    found = folder.import_job(llama_factory=path, torchrun=TORCHRUN, model=None, sequence_length=None)

    job = found.job
    assert job.model.adapter == Adapter(r=8, alpha=16, target_modules=LINEAR)
    assert (job.model.parameter_dtype, job.train.precision) == ("bfloat16", "bf16_autocast")
    assert (job.train.sequence_length, job.train.recompute) == (1024, Recompute(mode="full"))
    assert (job.train.micro_batch_size, job.train.gradient_accumulation_steps) == (1, 8)
    assert found.supposed == ("recomputation without reentrancy, which LLaMA-Factory has under FSDP alone",)


def test_full_training_keeps_parameters_in_float32_and_deepspeed_decides_under_it(folder: Folder) -> None:
    full = FACTORY.replace("finetuning_type: lora", "finetuning_type: full\ndeepspeed: ds.json")
    without = FACTORY.replace("finetuning_type: lora", "finetuning_type: full\ndisable_gradient_checkpointing: true")
    folder.write("ds.json", ZERO_2)

    given = {"torchrun": TORCHRUN, "model": None, "sequence_length": None}
    zero = folder.import_job(llama_factory=folder.write("full.yaml", full), **given).job
    plain = folder.import_job(llama_factory=folder.write("plain.yaml", without), **given).job

    assert zero.parallel.deepspeed is not None
    assert (plain.model.parameter_dtype, plain.model.adapter, plain.train.recompute) == ("float32", None, Recompute())


@pytest.mark.parametrize(
    ("changed", "first_line"),
    [
        ("quantization_bit: 8", "train.yaml:14:19: quantization_bit is 8"),
        ("use_galore: true", "train.yaml:14:13: use_galore is true: GaLore is not planned"),
        ("lora_ranks: 4", "train.yaml:14:1: unknown key `lora_ranks`"),
    ],
)  # fmt: skip
def test_what_llama_factory_may_not_say(folder: Folder, changed: str, first_line: str) -> None:
    message = folder.refusal(llama_factory=folder.write("train.yaml", FACTORY + changed), torchrun=TORCHRUN, model=None)

    assert message.splitlines()[0] == first_line


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


def test_the_copy_of_a_mirror_is_the_model_whose_name_it_has(folder: Folder) -> None:
    path = folder.write("axolotl.yaml", AXOLOTL.replace("meta-llama/", "NousResearch/"))

    found = folder.import_job(axolotl=path, torchrun=TORCHRUN, model=None, sequence_length=None)

    assert document(found.job)["model"]["hf_config"]["vocab_size"] == 128256
    told = "NousResearch/Llama-3.2-1B is meta-llama/Llama-3.2-1B, whose name it has (--model CONFIG.json for another)"
    assert found.supposed[0] == told


def test_the_copy_of_anybody_else_is_asked_about(folder: Folder) -> None:
    path = folder.write("axolotl.yaml", AXOLOTL.replace("meta-llama/", "somebody/"))

    message = folder.refusal(axolotl=path, torchrun=TORCHRUN, model=None, sequence_length=None)

    assert "did you mean `meta-llama/Llama-3.2-1B` (--model meta-llama/Llama-3.2-1B)?" in message


def test_all_linear_layers_but_those_of_a_vision_tower_have_to_be_named(folder: Folder) -> None:
    model = folder.write("other.json", {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {}})
    path = folder.write("train.yaml", FACTORY)

    message = folder.refusal(llama_factory=path, torchrun=TORCHRUN, model=model, sequence_length=None)

    assert message.splitlines()[0].startswith("train.yaml: all linear layers but those of the vision tower are adapted")


def test_bitsandbytes_is_what_llama_factory_calls_bnb_too(folder: Folder) -> None:
    packed = FACTORY + "quantization_bit: 4\nquantization_method: bitsandbytes\n"

    job = folder.import_job(llama_factory=folder.write("t.yaml", packed), torchrun=TORCHRUN, sequence_length=None).job

    assert job.model.adapter == Adapter(kind="qlora", r=8, alpha=16, target_modules=LINEAR)


def test_an_old_name_is_read_and_a_config_of_deepspeed_may_be_given_by_itself(folder: Folder) -> None:
    """Recipes name it as from the folder in which their program is started."""
    old = FACTORY.replace("finetuning_type: lora", "finetuning_type: full\ndeepspeed: examples/ds_z2.json")
    old += "evaluation_strategy: steps\neval_steps: 2\n"
    path, config = folder.write("train.yaml", old), folder.write("elsewhere.json", ZERO_2)
    given = {"llama_factory": path, "torchrun": TORCHRUN, "sequence_length": None}

    assert folder.import_job(**given, deepspeed=config).job.train.eval == Eval(micro_batch_size=8, every=2)
    assert (
        folder.refusal(**given)
        .splitlines()[-1]
        .endswith("or give it by itself where it is DeepSpeed's (--from-deepspeed FILE)")
    )


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
    path = folder.write("axolotl.yaml", AXOLOTL.replace("adamw_torch", name))

    found = folder.import_job(axolotl=path, torchrun=TORCHRUN, sequence_length=None).job.train.optimizer

    assert {"name": found.name, **found.arguments}.items() >= {**optimizer, "lr": 2e-4, "weight_decay": 0.0}.items()


def test_an_optimizer_that_nobody_plans_is_refused_with_all_that_are(folder: Folder) -> None:
    path = folder.write("axolotl.yaml", AXOLOTL.replace("adamw_torch", "OPT"))

    message = folder.refusal(axolotl=path, torchrun=TORCHRUN, sequence_length=None)

    assert message.splitlines()[:2] == [
        'axolotl.yaml:14:12: optimizer is "OPT": others are not planned; write train.optimizer in JOB.yaml',
        f"  allowed: {', '.join(tables()['TrainingArguments'].keys['optim'].values)}",
    ]


def test_a_wrong_optimizer_is_said_with_unknown_keys_and_wrong_values(folder: Folder) -> None:
    wrong = AXOLOTL.replace("adamw_torch", "adamw_bnb_8bits").replace("0.0002", "fast") + "loraa: 1"

    message = folder.refusal(axolotl=folder.write("axolotl.yaml", wrong), torchrun=TORCHRUN, sequence_length=None)

    assert message.splitlines()[:4] == [
        "3 keys cannot be planned as they are:",
        '    axolotl.yaml:14:12: optimizer is "adamw_bnb_8bits": others are not planned; write train.optimizer in'
        " JOB.yaml (did you mean `adamw_bnb_8bit`?)",
        '    axolotl.yaml:15:16: learning_rate is "fast" (write it without quotes)',
        "    axolotl.yaml:19:1: unknown key `loraa` (delete it, or say what it decides in JOB.yaml)",
    ]


def test_a_batch_of_axolotls_first_versions_is_accumulated(folder: Folder) -> None:
    old = AXOLOTL.replace("gradient_accumulation_steps: 4", "batch_size: 16\nwandb_anything: x\nlora_on_cpu: true")

    found = folder.import_job(axolotl=folder.write("a.yaml", old), torchrun=TORCHRUN, sequence_length=None)

    assert found.job.train.gradient_accumulation_steps == 8
    assert next(iter(found.ignored.values())) == ("datasets", "sample_packing", "wandb_anything", "lora_on_cpu")


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


def test_a_recipe_of_trl_is_the_trainer_with_its_own_keys(folder: Folder) -> None:
    path = folder.write("sft.yaml", TRL_RECIPE)

    found = folder.import_job(training_arguments=path, torchrun=TORCHRUN, model=None, sequence_length=None)

    job = found.job
    assert job.model.adapter == Adapter(kind="qlora", r=8, alpha=32, dropout=0.05, target_modules=("q_proj", "v_proj"))
    assert (job.train.sequence_length, job.train.micro_batch_size, job.model.parameter_dtype) == (512, 2, "bfloat16")
    assert found.ignored == {str(path): ("packing", "chars_per_token")}


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


def test_torchtitans_first_versions_are_read_as_the_present_one(folder: Folder) -> None:
    new = titan(folder, "[compile]\nenable = true\n")

    old = folder.import_job(
        torchtitan=folder.write("old.toml", OLD_TITAN), torchrun=EIGHT, model=None, sequence_length=None
    ).job

    assert (old.model, old.train, old.parallel) == (new.model, new.train, new.parallel)


def test_an_adapter_is_a_source_beside_others(folder: Folder) -> None:
    folder.write("adapter/adapter_config.json", ADAPTER)

    job = folder.import_job(peft=folder.path / "adapter", torchrun=TORCHRUN, job=folder.own_loop(), model=None).job

    assert job.model.adapter == Adapter(r=16, alpha=32, dropout=0.1, target_modules=("q_proj", "v_proj"))
    assert document(job)["model"]["hf_config"]["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("changed", "first_line"),
    [
        ({"peft_type": "IA3"}, 'adapter_config.json:2:16: peft_type is "IA3": other adapters are not planned'),
        ({"target_modules": ".*_proj"}, 'adapter_config.json:7:21: target_modules is ".*_proj"'),
        ({"modules_to_save": ["lm_head"]},
         "adapter_config.json:12:22: modules_to_save is a list: modules that are trained whole beside the adapter are"
         " not planned"),
        ({"r": "16"}, 'adapter_config.json:4:8: r is "16"'),
        ({"rank": 4}, "adapter_config.json:12:3: unknown key `rank`"),
    ],
)  # fmt: skip
def test_what_an_adapter_may_not_say(folder: Folder, changed: Mapping[str, Any], first_line: str) -> None:
    path = folder.write("adapter_config.json", {**ADAPTER, **changed})

    assert folder.refusal(peft=path, torchrun=TORCHRUN, job=folder.own_loop()).splitlines()[0] == first_line


@pytest.mark.parametrize(
    ("line", "nodes", "gpus"),
    [
        ("deepspeed --num_gpus 4 train.py --deepspeed_config ds.json", 1, 4),
        ("deepspeed --num_nodes 2 --num_gpus=8 --master_port 29500 train.py", 2, 8),
        ("NCCL_DEBUG=INFO deepspeed --no_ssh --num_accelerators 2 train.py", 1, 2),
    ],
)
def test_deepspeeds_launcher(folder: Folder, line: str, nodes: int, gpus: int) -> None:
    cluster = folder.import_job(torchrun=line, job=folder.own_loop()).job.cluster

    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, gpus)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deepspeed --hostfile hosts --num_gpu 4 train.py", "unknown option --num_gpu"),
        ("deepspeed train.py", "cluster.gpus_per_node: how many processes there are (--gpus 8,"),
        ("deepspeed --autotuning run --num_gpus 4 train.py", "the line asks for autotuning"),
    ],
)
def test_what_deepspeeds_launcher_leaves_open(folder: Folder, line: str, said: str) -> None:
    assert said in folder.refusal(torchrun=line, job=folder.own_loop())

"""Reads transformers' TrainingArguments with what TRL's SFTTrainer adds to them, from JSON or from a recipe in YAML.

Keys are those of TRL 0.7 to 1.16 (trainer/sft_config.py, model_config.py, dpo_config.py, grpo_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.errors import SpecError
from planner.job.importers import drafts, training_arguments
from planner.job.importers.drafts import Key, fixed_key, fixed_keys, ignored_keys, mapped_key
from planner.job.importers.recipes import Recipe
from planner.job.importers.training_arguments import KEYS as TRAINER
from planner.job.importers.training_arguments import RETIRED
from planner.job.schema import ALL_LINEAR

PROGRAM = f"{training_arguments.PROGRAM}, or of TRL's SFTConfig and ModelConfig"
_ADAPTER = "model.adapter"
_DTYPES = ("bfloat16", "float16", "float32")

KEYS: Mapping[str, Key] = {
    "max_length": mapped_key("train.sequence_length", "whole"),
    "model_name_or_path": mapped_key("model.hf_config", "text", None, "where nothing else names the model"),
    "dtype": mapped_key("model.parameter_dtype", "text", None, "bfloat16, float16 or float32"),
    "use_peft": mapped_key(_ADAPTER, "flag", False, "a LoRA"),
    "lora_r": mapped_key(f"{_ADAPTER}.r", "whole", 16),
    "lora_alpha": mapped_key(f"{_ADAPTER}.alpha", "whole", 32),
    "lora_dropout": mapped_key(f"{_ADAPTER}.dropout", "number", 0.05),
    "lora_target_modules": mapped_key(f"{_ADAPTER}.target_modules", "any", None, "a list of names, or all-linear"),
    "use_dora": mapped_key(f"{_ADAPTER}.kind", "flag", False, "true is dora"),
    "load_in_4bit": mapped_key(f"{_ADAPTER}.kind", "flag", False, "true is qlora"),
    "load_in_8bit": training_arguments.EIGHT_BITS,
    "bnb_4bit_quant_type": fixed_key(("nf4",), "other packed weights are not planned"),
    "use_bnb_nested_quant": mapped_key(f"{_ADAPTER}.kind", "flag", False, "planned as true, which keeps less"),
    "lora_modules_to_save": fixed_key((None, []), "modules that are trained whole beside the adapter are not planned"),
    "lora_target_parameters": fixed_key((None, []), "adapters of parameters outside of modules are not planned"),
    "attn_implementation": fixed_key(
        (None, "sdpa", "flash_attention_2", "flash_attention_3", "kernels-community/flash-attn"),
        "write model.attention eager in JOB.yaml",
    ),
    "activation_offloading": fixed_key((False, None), "write train.activation_offload in JOB.yaml"),
    "loss_type": fixed_key(("nll", None), "what another loss or preferences add is not planned"),
    "model_init_kwargs": fixed_key((None, {}), "write what it decides in JOB.yaml"),
    "router_aux_loss_coef": fixed_key((None, 0.0), "the routers' loss is not planned"),
    **fixed_keys(
        (None,), "what preferences and rewards add is not planned", "beta", "ref_model_init_kwargs", "num_generations",
        "desirable_weight", "center_rewards_coefficient", "max_completion_length", "max_prompt_length", "simpo_gamma",
    ),
    **ignored_keys(
        "dataset_*", "packing*", "eval_packing", "padding_free", "pad_*", "eos_token", "chat_template*",
        "completion_only_loss", "assistant_only_loss", "shuffle_dataset", "num_of_sequences", "chars_per_token",
        "truncation_mode", "trust_remote_code", "model_revision", "lora_task_type", "use_rslora",
        "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype", "datasets", "dataset", "base_model_revision",
        "tokenizer_name_or_path", "auto_insert_empty_system_msg", "preprocessing_num_workers", "system_prompt",
        "wandb_*", "benchmarks", "callbacks", "overwrite_hub_revision", "push_to_hub_revision",
    ),
}  # fmt: skip

RENAMED: Mapping[str, str] = {
    "max_seq_length": "max_length",  # by 0.19
    "use_liger": "use_liger_kernel",  # by 0.19
    "torch_dtype": "dtype",  # by 0.24
    **training_arguments.RENAMED,
}


def read(path: Path) -> Recipe:
    """The job of a file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    in_yaml = path.suffix.lower() in (".yaml", ".yml")
    reader = drafts.read_yaml_file if in_yaml else drafts.read_json_file
    written = drafts.rename(reader(path, training_arguments.WRITER).mapping(), RENAMED)
    known = {**KEYS, **TRAINER, **RETIRED}
    drafts.check_all(known, written, PROGRAM)
    trainer = {name: node for name, node in written.items() if name in TRAINER or name in RETIRED}
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=tuple(drafts.list_ignored(known, written)),
        model=written.get("model_name_or_path"), arguments=training_arguments.of_nodes(trainer, path.parent),
    )  # fmt: skip
    if (length := written.get("max_length")) is not None and length.value is not None:
        recipe.say("train.sequence_length", length.value, length.place)
    if (dtype := written.get("dtype")) is not None and dtype.value not in (None, "auto"):
        if dtype.value not in _DTYPES:
            raise dtype.is_error(allowed=f"auto, {', '.join(_DTYPES)}", remedy="write one of these")
        recipe.suppose("model.parameter_dtype", dtype.value)
    values = {name: drafts.value_of(KEYS, written, name) for name in KEYS if not name.endswith("*")}
    if not values["use_peft"]:
        return recipe
    if values["load_in_4bit"] and values["use_dora"]:
        raise SpecError("use_dora stands beside load_in_4bit", allowed="one of the two", place=recipe.source)
    recipe.adapter = {
        "kind": "qlora" if values["load_in_4bit"] else "dora" if values["use_dora"] else "lora",
        "r": values["lora_r"], "alpha": values["lora_alpha"], "dropout": float(values["lora_dropout"]),
    }  # fmt: skip
    if targets := values["lora_target_modules"]:
        names = targets if isinstance(targets, list) else [str(targets)]
        recipe.adapter["target_modules"] = [ALL_LINEAR] if names == [ALL_LINEAR] else names
    if values["load_in_4bit"] and not values["use_bnb_nested_quant"]:
        recipe.supposed += ("double quantization of the four bits, which takes less (0.373 bits of a weight)",)
    return recipe

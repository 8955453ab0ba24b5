"""Reads the YAML of LLaMA-Factory's `llamafactory-cli train`: fields of TrainingArguments beside its own.

Its own are those of LLaMA-Factory 0.9.5 (hparams/model_args.py, finetuning_args.py, data_args.py); what they do is in
model/adapter.py and model/model_utils/checkpointing.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.errors import SpecError
from planner.job.importers import drafts, training_arguments
from planner.job.importers.drafts import Key, fixed_key, fixed_keys, ignored_keys, mapped_key, read_yaml_file
from planner.job.importers.recipes import Recipe
from planner.job.importers.training_arguments import KEYS as TRAINER
from planner.job.importers.training_arguments import RETIRED
from planner.job.nodes import Node, node_from_data
from planner.job.schema import ALL_LINEAR

PROGRAM = "LLaMA-Factory 0.9.5"
WRITER = "llamafactory-cli train takes"
_ADAPTER = "model.adapter"

KEYS: Mapping[str, Key] = {
    "model_name_or_path": mapped_key("model.hf_config", "text", None, "where nothing else names the model"),
    "cutoff_len": mapped_key("train.sequence_length", "whole", 2048),
    "finetuning_type": mapped_key(_ADAPTER, "text", "lora", "lora or full"),
    "lora_rank": mapped_key(f"{_ADAPTER}.r", "whole", 8),
    "lora_alpha": mapped_key(f"{_ADAPTER}.alpha", "whole", None, "null: twice lora_rank"),
    "lora_dropout": mapped_key(f"{_ADAPTER}.dropout", "number", 0.0),
    "lora_target": mapped_key(f"{_ADAPTER}.target_modules", "text", "all", "names with commas, or all linear layers"),
    "use_dora": mapped_key(f"{_ADAPTER}.kind", "flag", False, "true is dora"),
    "quantization_bit": mapped_key(f"{_ADAPTER}.kind", "whole", None, "4 is qlora"),
    "disable_gradient_checkpointing": mapped_key("train.recompute", "flag", False, "false is full"),
    "stage": fixed_key(("sft", "pt"), "what reward models and preferences add is not planned"),
    "flash_attn": fixed_key(("auto", "sdpa", "fa2"), "other attention is not planned"),
    "quantization_method": fixed_key(("bnb", "bitsandbytes"), "other packed weights are not planned"),
    "quantization_type": fixed_key(("nf4",), "other packed weights are not planned"),
    "double_quantization": fixed_key((True,), "other packed weights are not planned"),
    "pure_bf16": fixed_key((False,), "write model.parameter_dtype bfloat16 in JOB.yaml"),
    "additional_target": fixed_key((None,), "modules that are trained whole beside the adapter are not planned"),
    "upcast_layernorm": fixed_key((False,), "layer norms in float32 are not planned"),
    "upcast_lmhead_output": fixed_key((False,), "the head's output in float32 is not planned"),
    "use_unsloth": fixed_key((False,), "Unsloth's kernels are not planned"),
    "use_unsloth_gc": fixed_key((False,), "Unsloth's recomputation is not planned"),
    "enable_liger_kernel": training_arguments.LIGER,
    "mixture_of_depths": fixed_key((None,), "it is not planned"),
    "use_galore": fixed_key((False,), "GaLore is not planned"),
    "use_apollo": fixed_key((False,), "APOLLO is not planned"),
    "use_badam": fixed_key((False,), "BAdam is not planned"),
    "use_adam_mini": fixed_key((False,), "Adam-mini is not planned"),
    "use_muon": fixed_key((False,), "write train.optimizer in JOB.yaml"),
    "use_mca": fixed_key((False,), "Megatron-core is not planned"),
    "use_llama_pro": fixed_key((False,), "blocks that are added are not planned"),
    "use_kt": fixed_key((False,), "KTransformers is not planned"),
    "resize_vocab": fixed_key((False,), "a vocabulary that grows is not planned; write the config that it gives"),
    "reward_model": fixed_key((None,), "what reward models add is not planned"),
    "ref_model": fixed_key((None,), "what a reference model adds is not planned"),
    "shift_attn": fixed_key((False,), "shifted sparse attention is not planned"),
    "train_mm_proj_only": fixed_key((False,), "a model that is frozen in part is not planned"),
    "fp8": fixed_key((False,), "fp8 is not planned"),
    "use_v1_kernels": fixed_key((False,), "its kernels keep other tensors than the model's own, and are not planned"),
    **fixed_keys((False,), "its loss is not planned", "use_dft_loss", "use_asft_loss", "use_eaft_loss"),
    "use_hyper_parallel": fixed_key((False,), "it is not planned"),
    "visual_inputs": fixed_key((False,), "pictures are written as train.inputs in JOB.yaml"),
    "export_dir": fixed_key((None,), "this file exports a model, and trains none"),
    "task": fixed_key((None,), "this file evaluates a model, and trains none"),
    "val_size": mapped_key("train.eval", "number", 0.0, "by eval_strategy alone"),
    **ignored_keys(
        "adapter_*", "cache_dir", "use_fast_tokenizer", "split_special_tokens", "add_*", "model_revision",
        "low_cpu_mem_usage", "rope_scaling", "use_reentrant_gc", "use_kv_cache", "hf_hub_token", "ms_hub_token",
        "om_hub_token", "print_param_status", "trust_remote_code", "train_from_scratch", "template", "dataset",
        "eval_dataset", "dataset_dir", "media_dir", "train_on_prompt", "mask_history", "streaming", "buffer_size",
        "mix_strategy", "interleave_probs", "overwrite_cache", "preprocessing_*", "max_samples", "eval_num_beams",
        "ignore_pad_token_for_loss", "eval_on_each_dataset", "packing", "neat_packing", "tool_format", "default_system",
        "enable_thinking", "tokenized_path", "data_shared_file_system", "loraplus_*", "use_rslora", "pissa_*",
        "create_new_adapter", "use_swanlab", "compute_accuracy", "disable_shuffling", "early_stopping_steps",
        "plot_loss", "include_effective_tokens_per_second", "freeze_*", "infer_*", "ray_*", "resources_per_worker",
        "placement_strategy", "master_*", "split", "reserved_label_len", "dpo_*", "orpo_beta", "pref_*", "kto_*",
        "simpo_gamma", "ppo_*", "ld_alpha", "ref_model_*", "reward_model_*", "galore_*", "apollo_*", "badam_*", "oft_*",
        "module_dropout", "new_special_tokens*", "init_special_tokens", "image_*", "video_*", "crop_to_patches",
        "use_audio_in_video", "audio_sampling_rate", "quantization_device_map", "moe_aux_loss_coef", "offload_folder",
        "vllm_*", "sglang_*", "export_*", "swanlab_*", "compute_dtype", "device_map", "model_max_length",
        "block_diag_attn", "do_sample", "temperature", "top_p", "top_k", "num_beams", "max_length", "max_new_tokens",
        "repetition_penalty", "length_penalty", "skip_special_tokens", "task_dir", "batch_size", "lang", "n_shot",
        "save_dir", "download_mode", "preserve_thinking", "hyper_parallel_args", "asft_alpha", "eaft_alpha", "kt_*",
        "enable_torch_profiler", "profiler_*", "profile_modules", "fp8_*",
    ),
}  # fmt: skip


def read(path: Path) -> Recipe:
    """The job of a file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    written = drafts.rename(read_yaml_file(path, WRITER).mapping(), training_arguments.RENAMED)
    drafts.check_all({**TRAINER, **RETIRED, **KEYS}, written, PROGRAM)
    trainer = {name: node for name, node in written.items() if name not in KEYS and name in {**TRAINER, **RETIRED}}
    own = {name: node for name, node in written.items() if name not in trainer}
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=tuple(drafts.list_ignored(KEYS, own)),
        model=own.get("model_name_or_path"), supposed=tuple(drafts.list_supposed(KEYS, own)),
    )  # fmt: skip
    # It recomputes unless it is told not to, whatever TrainingArguments say.
    name = "disable_gradient_checkpointing"
    recomputes = not drafts.value_of(KEYS, own, name)
    if recomputes:
        recipe.supposed += ("recomputation without reentrancy, which LLaMA-Factory has under FSDP alone",)
    fields = {field: node for field, node in trainer.items() if "checkpointing" not in field}
    place = own[name].place if name in own else recipe.source
    fields["gradient_checkpointing"] = node_from_data(recomputes, place, name)
    recipe.arguments = training_arguments.of_nodes(fields, path.parent)
    recipe.say_or_suppose("train.sequence_length", own.get("cutoff_len"), KEYS["cutoff_len"].default)
    _tell_adapter(own, recipe)
    return recipe


def _tell_adapter(own: Mapping[str, Node], recipe: Recipe) -> None:
    """Full training keeps parameters in float32; beside an adapter they have the dtype of the mixed precision."""
    kind = drafts.value_of(KEYS, own, "finetuning_type")
    bits = drafts.value_of(KEYS, own, "quantization_bit")
    if kind not in ("lora", "full"):
        raise own["finetuning_type"].error(f"is {kind!r}", allowed="lora, full", remedy="other kinds are not planned")
    if kind == "full":
        recipe.suppose("model.parameter_dtype", "float32")
        return
    if bits not in (None, 4):
        raise own["quantization_bit"].error(f"is {bits}", allowed="4, null", remedy="`planner run` plans other widths")
    dora = drafts.value_of(KEYS, own, "use_dora")
    if dora and bits:
        raise SpecError("use_dora stands beside quantization_bit", allowed="one of the two", place=recipe.source)
    rank, alpha = drafts.value_of(KEYS, own, "lora_rank"), drafts.value_of(KEYS, own, "lora_alpha")
    recipe.adapter = {
        "kind": "qlora" if bits else "dora" if dora else "lora",
        "r": rank,
        "alpha": 2 * rank if alpha is None else alpha,
        "dropout": float(drafts.value_of(KEYS, own, "lora_dropout")),
    }
    targets = str(drafts.value_of(KEYS, own, "lora_target"))
    names = [name for target in targets.split(",") if (name := target.strip())]
    recipe.freezes_vision = targets == "all"
    recipe.adapter["target_modules"] = [ALL_LINEAR] if targets == "all" else names
    assert recipe.arguments is not None
    asked = training_arguments.precision_of(recipe.arguments)
    if asked is not None:
        recipe.suppose("model.parameter_dtype", "bfloat16" if asked.value == "bf16" else "float16")

"""Reads Axolotl's YAML, which hands most of itself to transformers' Trainer (Axolotl 0.19.0, core/builders)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.errors import SpecError
from planner.job.importers import drafts, training_arguments
from planner.job.importers.drafts import (
    Key,
    fixed_key,
    fixed_keys,
    ignored_keys,
    mapped_key,
    read_yaml_file,
    supposed_key,
)
from planner.job.importers.recipes import Recipe
from planner.job.nodes import Node, node_from_data
from planner.job.schema import ALL_LINEAR

# Keys are those of Axolotl 0.19.0 (utils/schemas/config.py, model.py, peft.py, training.py, deprecated.py).
PROGRAM = "Axolotl 0.19"
_ADAPTER = "model.adapter"
_KERNELS = supposed_key(
    "flag", None, "peft's own layers in the place of Axolotl's kernels (lora_*_kernel), which keep less"
)
_PLUGINS = "axolotl.integrations"
_CUT_CROSS_ENTROPY = f"{_PLUGINS}.cut_cross_entropy.CutCrossEntropyPlugin"

OF_TRAINER: Mapping[str, str] = {
    "micro_batch_size": "per_device_train_batch_size",
    "optimizer": "optim",
    **{
        name: name
        for name in (
            "gradient_accumulation_steps", "learning_rate", "weight_decay", "adam_epsilon", "adam_beta1", "adam_beta2",
            "optim_args", "optim_target_modules", "max_grad_norm", "auto_find_batch_size", "accelerator_config",
            "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_find_unused_parameters", "torch_empty_cache_steps",
            "deepspeed", "torch_compile", "torch_compile_backend", "torch_compile_mode", "neftune_noise_alpha",
        )
    },
}  # fmt: skip
"""Keys that Axolotl hands to transformers' TrainingArguments as they are, with the name that they have there."""

KEYS: Mapping[str, Key] = {
    **{name: training_arguments.KEYS[field] for name, field in OF_TRAINER.items()},
    "base_model": mapped_key("model.hf_config", "text", None, "where nothing else names the model"),
    "sequence_len": mapped_key("train.sequence_length", "whole", 512),
    "bf16": mapped_key("train.precision", "any", None, "true and auto are bf16; full has no autocast"),
    "fp16": mapped_key("train.precision", "flag", None),
    "bfloat16": mapped_key("model.parameter_dtype", "flag", None),
    "float16": mapped_key("model.parameter_dtype", "flag", None),
    "gradient_checkpointing": mapped_key("train.recompute", "any", False, "true is full; offload is refused"),
    "gradient_checkpointing_kwargs": mapped_key("train.recompute", "mapping", None, "use_reentrant alone"),
    "adapter": mapped_key(_ADAPTER, "text", None, "lora or qlora"),
    "lora_r": mapped_key(f"{_ADAPTER}.r", "whole", 8),
    "lora_alpha": mapped_key(f"{_ADAPTER}.alpha", "whole", 8),
    "lora_dropout": mapped_key(f"{_ADAPTER}.dropout", "number", 0.0),
    "lora_target_modules": mapped_key(f"{_ADAPTER}.target_modules", "any", None, "a list of names, or all-linear"),
    "lora_target_linear": mapped_key(f"{_ADAPTER}.target_modules", "flag", None, "true: all linear layers"),
    "peft_use_dora": mapped_key(f"{_ADAPTER}.kind", "flag", None, "true is dora"),
    "load_in_4bit": mapped_key(f"{_ADAPTER}.kind", "flag", None, "of qlora"),
    "fsdp": mapped_key("parallel.dp_shard", "any", None, "as in TrainingArguments"),
    "fsdp_config": mapped_key("parallel.dp_shard", "mapping", None, "as in TrainingArguments"),
    "fsdp_version": mapped_key("parallel.dp_shard.kind", "any", None),
    "dp_shard_size": mapped_key("parallel.dp_shard.degree", "whole"),
    "dp_replicate_size": mapped_key("parallel.dp_replicate.degree", "whole"),
    "tensor_parallel_size": mapped_key("parallel.tp.degree", "whole"),
    "load_in_8bit": training_arguments.EIGHT_BITS,
    "gptq": fixed_key((None, False), "other packed weights are not planned"),
    "relora": fixed_key((None, False), "ReLoRA is not planned"),
    "rl": fixed_key((None,), "what preferences add is not planned"),
    "reward_model": fixed_key((None, False), "reward models are not planned"),
    "fp8": fixed_key((None, False), "fp8 is not planned"),
    "qat": fixed_key((None,), "training for quantization is not planned"),
    "plugins": fixed_key(
        (None, [], f"{_PLUGINS}.liger.LigerPlugin", _CUT_CROSS_ENTROPY, f"{_PLUGINS}.swanlab.SwanLabPlugin"),
        "other plugins are not planned",
    ),
    "activation_offloading": fixed_key((None, False), "write train.activation_offload in JOB.yaml"),
    "layer_offloading": fixed_key((None, False), "layers on the host are not planned"),
    "selective_checkpointing": fixed_key((None,), "write train.recompute in JOB.yaml"),
    "chunked_cross_entropy": fixed_key((None, False), "write train.loss: {chunks: N} in JOB.yaml"),
    "tiled_mlp": fixed_key((None, False), "tiled feed-forwards are not planned"),
    "unfrozen_parameters": fixed_key((None, []), "a model that is frozen in part is not planned"),
    "lora_modules_to_save": fixed_key((None, []), "modules that are trained whole beside the adapter are not planned"),
    "lora_target_parameters": fixed_key((None, []), "adapters of parameters outside of modules are not planned"),
    "peft_layers_to_transform": fixed_key((None, []), "adapters of some layers alone are not planned"),
    **fixed_keys(
        (None, False), "other attention is not planned", "flex_attention", "xformers_attention", "sage_attention",
    ),
    "eager_attention": fixed_key((None, False), "write model.attention eager in JOB.yaml"),
    "context_parallel_size": fixed_key((None, 1), "ring attention of another library is not planned"),
    "sequence_parallel_degree": fixed_key((None, 1), "ring attention of another library is not planned"),
    "resize_token_embeddings_to_32x": fixed_key((None, False), "write the config that it gives"),
    "embeddings_skip_upcast": fixed_key((None, False), "it is not planned"),
    **dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), _KERNELS),
    **dict.fromkeys(("liger_*", "cut_cross_entropy"), training_arguments.LIGER),
    "batch_size": mapped_key("train.gradient_accumulation_steps", "whole", None, "divided by micro_batch_size"),
    "process_reward_model": fixed_key((None, False), "reward models are not planned"),
    "num_labels": fixed_key((None,), "write model.head in JOB.yaml"),
    "load_4bit": fixed_key((None, False), "write load_in_4bit, or gptq"),
    "max_packed_sequence_len": fixed_key((None,), "write sequence_len"),
    "lisa_n_layers": fixed_key((None, 0), "LISA is not planned"),
    "relora_steps": fixed_key((None, 0), "ReLoRA is not planned"),
    "model_config": fixed_key((None, {}), "write the config that it gives, and give it by --model"),
    "overrides_of_model_config": fixed_key((None, {}), "write the config that it gives, and give it by --model"),
    "bnb_config_kwargs": fixed_key((None, {}), "other packed weights are not planned"),
    "device_map": fixed_key((None, "auto"), "a model that is laid out by hand is not planned"),
    "peft_autocast_adapter_dtype": fixed_key((None, True), "adapters in the model's dtype are not planned"),
    "expert_parallel_size": fixed_key((None, 1), "it is not planned"),
    "pretrain_multipack_attn": fixed_key((None, True), "write train.padding in JOB.yaml"),
    "freeze_mm_modules": fixed_key((None, False), "a model that is frozen in part is not planned"),
    **fixed_keys(
        (None, False, {}, []), "it is not planned", "model_quantization_config", "quantization", "reinit_weights",
        "use_kernels", "experts_implementation", "quantize_moe_experts", "llama4_linearized_experts", "use_onebitllms",
        "deepcompile", "use_eaft", "use_pose", "shrink_embeddings", "ple_cpu_offload", "model_kwargs", "max_memory",
        "overrides_of_model_kwargs", "gpu_memory_limit", "fp32_norms", "diffusion", "large_head_attention",
        "gemma4_hybrid_attn_impl", "sdpa_varlen", "flash_attn_d512", "scaling_softmax", "xpos_rope",
        "peft_layers_pattern", "peft_layer_replication", "peft_trainable_token_indices", "lora_rank_pattern",
        "qlora_sharded_model_loading", "lora_embedding_kernel",
    ),
    **fixed_keys(
        (None, False), "its kernels keep other tensors than the model's own, and are not planned", "s2_attention",
        "flash_attn_cross_entropy", "flash_attn_rms_norm", "flash_attn_fuse_mlp", "flash_attn_fuse_qkv",
        "fused_attn_kernel", "flash_optimum", "landmark_attention", "unsloth_*",
    ),
    "val_set_size": supposed_key("number", None, "no evaluation: what it takes is not read (JOB.yaml: train.eval)"),
    **ignored_keys(
        "trust_remote_code", "model_type", "strict", "base_model_config", "processor_type", "resume_from_checkpoint",
        "auto_resume_from_checkpoints", "datasets", "test_datasets", "shuffle_*", "skip_prepare_dataset",
        "dataloader_*", "push_dataset_to_hub", "hf_use_auth_token", "seed", "ddp_timeout", "tf32", "train_on_inputs",
        "group_by_length", "num_epochs", "max_steps", "warmup_*", "eval_*", "evals_per_epoch", "save_*",
        "saves_per_epoch", "logging_steps", "early_stopping_patience", "load_best_model_at_end", "output_dir", "hub_*",
        "use_tensorboard", "sample_packing*", "pad_to_sequence_len", "pad_to_multiple_of", "excess_length_strategy",
        "min_sample_len", "curriculum_sampling", "chat_template*", "eot_tokens", "special_tokens", "tokens",
        "default_system_message", "lora_model_dir", "lora_fan_in_fan_out", "loraplus_*", "flash_attention",
        "sdp_attention", "attn_implementation", "loss_watchdog_*", "debug", "gc_steps", "low_cpu_mem_usage",
        "include_*", "profiler_*", "generate_samples", "streaming*", "rope_scaling", "peft", "local_rank", "world_size",
        "ddp", "device", "remove_unused_columns", "torchdistx_path", "gptq_*", "tokenizer_*", "type_of_model",
        "revision_of_model", "cls_model_config", "base_model_ignore_patterns", "processor_kwargs",
        "experimental_skip_move_to_device", "model_quantization_config_kwargs", "added_tokens_overrides",
        "mean_resizing_embeddings", "fix_untrained_tokens", "axolotl_config_path", "is_*", "image_*", "role_boundaries",
        "trainer_cls", "torch_dtype", "float32", "full_finetune", "batch_flattening", "flex_attn_compile_kwargs",
        "tiled_mlp_*", "chunked_cross_entropy_num_chunks", "torch_compile_options", "dynamic_checkpoint",
        "gc_collect_steps", "ring_attn_func", "heads_k_stride", "fp8_*", "fp32_norm_classes", "expert_parallel_*",
        "fsdp_final_state_dict_type", "scaling_softmax_*", "lora_on_cpu", "lora_alpha_pattern", "merge_lora",
        "merge_method", "peft_*", "lisa_*", "relora_*", "jagged_restart_*", "eaft_*", "pose_*", "dpo_*", "kto_*",
        "orpo_alpha", "cpo_alpha", "simpo_gamma", "rl_beta", "rpo_alpha", "ebft", "trl", "vllm",
        "center_rewards_coefficient", "precompute_ref_log_probs", "max_prompt_len", "adam_eps", "adam_beta3",
        "adam_epsilon2", "dion_*", "qgalore_*", "embedding_lr", "embedding_lr_scale", "lr_*", "eta_min", "cosine_*",
        "wandb_*", "use_wandb", "mlflow_*", "hf_mlflow_log_artifacts", "use_mlflow", "comet_*", "use_comet", "gradio_*",
        "otel_*", "use_otel_metrics", "trackio_*", "use_trackio", "swanlab_*", "use_swanlab", "ray_*", "use_ray",
        "resources_per_worker", "bench_*", "do_bench_eval", "do_causal_lm_eval", "generation_*",
        "num_generation_samples", "dataset_*", "pretrain*", "preprocess_iterable", "num_dataset_shards_to_save",
        "multipack_real_batches", "total_*", "metric_for_best_model", "greater_is_better", "kd_*", "spectrum_*",
        "grokfast_*", "lm_eval_*", "llmcompressor", "nemo_gym_*", "hatchery", "mora", "dense_mixer", "use_scattermoe",
        "use_sonicmoe", "dsv4_*", "gemma4_*", "nvfp4_*", "moe_*", "use_dsv4_kernels", "use_glm_dsa_kernels",
        "expert_backend", "nonexpert_quantization",
    ),
}  # fmt: skip

RENAMED: Mapping[str, str] = {
    "evaluation_strategy": "eval_strategy",
    "noisy_embedding_alpha": "neftune_noise_alpha",
    "model_revision": "revision_of_model",
}
"""Old names of keys by those of today (utils/schemas/deprecated.py)."""

WRITER = "axolotl train takes"
_DEGREES = {
    "dp_shard_size": "parallel.dp_shard.degree",
    "dp_replicate_size": "parallel.dp_replicate.degree",
    "tensor_parallel_size": "parallel.tp.degree",
}


def read(path: Path) -> Recipe:
    """The job of a file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    written = {
        name: node
        for name, node in read_yaml_file(path, WRITER).mapping().items()
        if node.value is not None and node.value != ""  # written out, and left empty: as if it were not there
    }
    written = drafts.rename(written, RENAMED)
    drafts.check_all(KEYS, written, PROGRAM)
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=tuple(drafts.list_ignored(KEYS, written)),
        model=written.get("base_model"), supposed=tuple(drafts.list_supposed(KEYS, written)),
    )  # fmt: skip
    precision, dtype = _precision(written)
    fields = {OF_TRAINER[name]: node for name, node in written.items() if name in OF_TRAINER}
    fields |= precision
    batch, part = written.get("batch_size"), written.get("micro_batch_size")
    if batch is not None and "gradient_accumulation_steps" not in fields and part is not None and part.value:
        steps = node_from_data(batch.plain() // part.plain(), batch.place, "gradient_accumulation_steps")
        fields["gradient_accumulation_steps"] = steps
    recomputes, config = written.get("gradient_checkpointing"), written.get("fsdp_config")
    if recomputes is not None and recomputes.value is not False:
        if recomputes.value is not True:
            remedy = "activations on the host are train.activation_offload in JOB.yaml"
            raise recomputes.is_error(allowed="true, false", remedy=remedy)
        names = ("gradient_checkpointing", "gradient_checkpointing_kwargs")
        fields |= {name: written[name] for name in names if name in written}
    if config is not None or "fsdp" in written:
        # FSDP as TrainingArguments ask for it, its version inside of its config.
        inner = {} if config is None else dict(config.mapping())
        if "fsdp_version" in written:
            inner["version"] = written["fsdp_version"]
        place = written["fsdp"].place if config is None else config.place
        fields["fsdp"] = written.get("fsdp") or node_from_data(True, place, "fsdp")
        fields["fsdp_config"] = Node(inner, "fsdp_config", place, place)
    recipe.arguments = training_arguments.of_nodes(fields, path.parent)
    recipe.suppose("model.parameter_dtype", dtype)
    recipe.say_or_suppose("train.sequence_length", written.get("sequence_len"), KEYS["sequence_len"].default)
    for name, degree in _DEGREES.items():
        if name in written:
            recipe.say(degree, written[name].plain(), written[name].place)
    _tell_adapter(written, recipe)
    if _CUT_CROSS_ENTROPY in (drafts.value_of(KEYS, written, "plugins") or ()):
        recipe.supposed += (training_arguments.LIGER.supposed,)
    return recipe


def _precision(written: Mapping[str, Node]) -> tuple[dict[str, Node], str]:
    """The field of TrainingArguments, and the dtype in which the model is loaded."""
    asked = written.get("bf16")
    if asked is not None and asked.value not in (True, False, "auto", "full"):
        raise asked.is_error(allowed="true, false, auto, full", remedy="write one of these")
    if asked is not None and asked.value in (True, "auto"):
        return {"bf16": node_from_data(True, asked.place, "bf16")}, "bfloat16"
    if (asked is not None and asked.value == "full") or drafts.value_of(KEYS, written, "bfloat16"):
        return {}, "bfloat16"
    if drafts.value_of(KEYS, written, "fp16"):
        return {"fp16": written["fp16"]}, "float16"
    return {}, "float16" if drafts.value_of(KEYS, written, "float16") else "float32"


def _tell_adapter(written: Mapping[str, Node], recipe: Recipe) -> None:
    kind = drafts.value_of(KEYS, written, "adapter")
    if kind is None:
        return
    if kind not in ("lora", "qlora"):
        raise written["adapter"].is_error(allowed="lora, qlora", remedy="other adapters are not planned")
    if kind == "lora" and drafts.value_of(KEYS, written, "load_in_4bit"):
        kind = "qlora"
    if drafts.value_of(KEYS, written, "peft_use_dora"):
        if kind == "qlora":
            raise SpecError("peft_use_dora stands beside qlora", allowed="one of the two", place=recipe.source)
        kind = "dora"
    recipe.adapter = {
        "kind": kind,
        "r": drafts.value_of(KEYS, written, "lora_r"),
        "alpha": drafts.value_of(KEYS, written, "lora_alpha"),
        "dropout": float(drafts.value_of(KEYS, written, "lora_dropout")),
    }
    targets = drafts.value_of(KEYS, written, "lora_target_modules")
    if drafts.value_of(KEYS, written, "lora_target_linear") or targets == ALL_LINEAR:
        # It adapts what is named beside all linear layers too.
        if isinstance(targets, list) and not {"embed_tokens", "lm_head"}.isdisjoint(targets):
            remedy = "delete lora_target_linear, and name all that is adapted"
            raise written["lora_target_modules"].is_error(
                allowed="linear layers beside lora_target_linear", remedy=remedy
            )
        recipe.adapter["target_modules"] = [ALL_LINEAR]
    elif isinstance(targets, list):
        recipe.adapter["target_modules"] = targets
    elif targets is not None:
        raise written["lora_target_modules"].is_error(
            allowed=f"a list of names, or {ALL_LINEAR}", remedy="write the names out"
        )

"""Lists every field of transformers' TrainingArguments, and what becomes of it.

Fields, types and defaults are those of transformers 5.23.0 (training_args.py); what they do is in its trainer.py,
trainer_optimizer.py and modeling_utils.py, and in accelerate 1.15.0 (accelerator.py). A test holds the table to the
installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.importers.foreign_keys import Key, fixed_key, ignored_keys, mapped_key

PROGRAM = "TrainingArguments of transformers 5.23"
_OPTIMIZER = "train.optimizer"
_DDP = "parallel.dp_replicate"
_SHARD = "parallel.dp_shard"

KEYS: Mapping[str, Key] = {
    "per_device_train_batch_size": mapped_key("train.micro_batch_size", "whole", 8),
    "gradient_accumulation_steps": mapped_key("train.gradient_accumulation_steps", "whole", 1),
    "max_grad_norm": mapped_key("train.gradient_clipping", "number", 1.0, "0: the norm is computed, not planned"),
    "optim": mapped_key(_OPTIMIZER, "text", "adamw_torch_fused", "the default from torch 2.8 on"),
    "optim_args": mapped_key(_OPTIMIZER, "text", None, "read for sgd, adagrad and rmsprop"),
    "learning_rate": mapped_key(_OPTIMIZER, "number", 5e-5),
    "weight_decay": mapped_key(_OPTIMIZER, "number", 0.0),
    "adam_beta1": mapped_key(_OPTIMIZER, "number", 0.9),
    "adam_beta2": mapped_key(_OPTIMIZER, "number", 0.999),
    "adam_epsilon": mapped_key(_OPTIMIZER, "number", 1e-8),
    "bf16": mapped_key(
        "train.precision", "flag", False, "bf16_autocast; fsdp_mixed under FSDP; DeepSpeed's own under it"
    ),
    "fp16": mapped_key("train.precision", "flag", False, "fp16_autocast; refused under FSDP; DeepSpeed's own under it"),
    "activation_checkpointing": mapped_key("train.recompute", "flag", None, "full"),
    "activation_checkpointing_kwargs": mapped_key(
        "train.recompute", "mapping", None, "every_n_layers is {every: n}; offload and use_reentrant true are refused"
    ),
    "gradient_checkpointing": mapped_key("train.recompute", "flag", None, "the old name"),
    "gradient_checkpointing_kwargs": mapped_key("train.recompute", "mapping", None, "the old name"),
    "torch_compile": mapped_key("train.compile", "flag", False, "the model"),
    "torch_compile_backend": mapped_key("train.compile.backend", "text", None, "set, it compiles"),
    "torch_compile_mode": mapped_key("train.compile.mode", "text", None, "set, it compiles"),
    "eval_strategy": mapped_key("train.eval", "text", "no"),
    "eval_steps": mapped_key("train.eval", "number", None, "in a whole number of steps"),
    "logging_steps": mapped_key("train.eval", "number", 500, "stands in for eval_steps"),
    "per_device_eval_batch_size": mapped_key("train.eval", "whole", 8, "where there is an evaluation"),
    "dataloader_num_workers": mapped_key("train.data_loader.workers", "whole", 0),
    "dataloader_prefetch_factor": mapped_key("train.data_loader.prefetch_factor", "whole", None, "null: torch's 2"),
    "dataloader_pin_memory": mapped_key("train.data_loader.pin_memory", "flag", True),
    "ddp_find_unused_parameters": mapped_key(
        f"{_DDP}.find_unused_parameters", "flag", None, "null: true, unless activations are recomputed"
    ),
    "ddp_bucket_cap_mb": mapped_key(f"{_DDP}.bucket_cap_mb", "whole"),
    "ddp_broadcast_buffers": mapped_key(f"{_DDP}.broadcast_buffers", "flag"),
    "ddp_static_graph": mapped_key(f"{_DDP}.static_graph", "flag"),
    "accelerator_config": mapped_key(
        f"{_DDP}.no_sync", "any", None, "sync_each_batch; split_batches and num_steps are refused"
    ),
    "fsdp": mapped_key(_SHARD, "any", None, "version 2"),
    "fsdp_config": mapped_key(_SHARD, "any", None, "the keys below"),
    "deepspeed": mapped_key("parallel.deepspeed", "any", None, "a mapping, or a file within the folder"),
    "run_name": mapped_key("metadata.name", "text"),
    "optim_target_modules": fixed_key((None,), "GaLore and APOLLO are not planned"),
    "label_smoothing_factor": fixed_key((0.0, 0), "the smoothed loss and its copies of the logits are not planned"),
    "bf16_full_eval": fixed_key((False,), "an evaluation that casts the whole model is not planned"),
    "fp16_full_eval": fixed_key((False,), "an evaluation that casts the whole model is not planned"),
    "use_liger_kernel": fixed_key(
        (False,), "Liger's kernels keep other tensors than the model's own, and are not planned"
    ),
    "use_cache": fixed_key((False,), "keys and values that training keeps in a cache are not planned"),
    "neftune_noise_alpha": fixed_key((None,), "the noise on the embeddings is not planned"),
    "torch_empty_cache_steps": fixed_key((None,), "releasing the allocator's cache between steps is not planned"),
    "auto_find_batch_size": fixed_key((False,), "the batch size would be found by running out of memory"),
    "full_determinism": fixed_key((False,), "it changes the workspaces and kernels of CUDA"),
    "use_cpu": fixed_key((False,), "there is no GPU to plan for"),
    "parallelism_config": fixed_key((None,), "it is read from accelerate's config (--from-accelerate)"),
    "ddp_backend": fixed_key((None, "nccl"), "other backends keep other buffers"),
    "debug": fixed_key(([], "", None), "hooks on every module are not planned"),
    "resume_from_checkpoint": fixed_key(
        (None, False), "what is loaded before training is written as train.checkpoint_load in JOB.yaml"
    ),
    **ignored_keys(
        "output_dir", "num_train_epochs", "max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
        "average_tokens_across_devices", "tf32", "liger_kernel_config", "logging_strategy", "logging_first_step",
        "log_on_each_node", "logging_nan_inf_filter", "include_num_input_tokens_seen", "log_level",
        "log_level_replica", "disable_tqdm", "report_to", "project", "trackio_space_id", "trackio_bucket_id",
        "trackio_static_space_id", "eval_delay", "prediction_loss_only", "eval_on_start", "eval_do_concat_batches",
        "eval_use_gather_object", "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics",
        "save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit",
        "enable_jit_checkpoint", "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy",
        "hub_always_push", "hub_revision", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
        "ignore_data_skip", "restore_callback_states_from_checkpoint", "seed", "data_seed", "dataloader_drop_last",
        "dataloader_persistent_workers", "dataloader_multiprocessing_context", "dataloader_in_order",
        "remove_unused_columns", "label_names", "train_sampling_strategy", "length_column_name", "ddp_timeout",
        "skip_memory_metrics", "do_train", "do_eval", "do_predict", "local_rank",
    ),
}  # fmt: skip

RETIRED: Mapping[str, Key] = {
    "no_cuda": fixed_key((False,), "there is no GPU to plan for"),
    "use_mps_device": fixed_key((False,), "there is no CUDA GPU to plan for"),
    "use_ipex": fixed_key((False,), "there is no CUDA GPU to plan for"),
    "adafactor": fixed_key((False,), "Adafactor of transformers is not planned"),
    "per_gpu_train_batch_size": fixed_key((None,), "write per_device_train_batch_size"),
    "evaluation_strategy": fixed_key(("no",), "write eval_strategy"),
    "mp_parameters": fixed_key(("",), "SageMaker's model parallelism is not planned"),
    "fsdp_min_num_params": fixed_key((0,), "wrapping by size is not planned"),
    "fsdp_transformer_layer_cls_to_wrap": fixed_key((None,), "write transformer_layer_cls_to_wrap in fsdp_config"),
    "torchdynamo": fixed_key((None,), "write torch_compile"),
    "split_batches": fixed_key((None, False), "each rank would take a part of per_device_train_batch_size"),
    "tpu_num_cores": fixed_key((None,), "there is no GPU to plan for"),
    **ignored_keys(
        "overwrite_output_dir", "per_gpu_eval_batch_size", "warmup_ratio", "logging_dir", "save_safetensors",
        "jit_mode_eval", "fp16_opt_level", "half_precision_backend", "fp16_backend", "tpu_metrics_debug", "past_index",
        "group_by_length", "use_legacy_prediction_loop", "include_inputs_for_metrics", "push_to_hub_model_id",
        "push_to_hub_organization", "push_to_hub_token", "ray_scope", "include_tokens_per_second",
        "dispatch_batches",
    ),
}  # fmt: skip
"""Fields of transformers 4 that files still have (4.57, training_args.py)."""

FLAGS_OF_SCRIPTS = ("activation_checkpointing", "gradient_checkpointing", "fsdp")
"""Those that HfArgumentParser takes without a value though they are no plain bools."""

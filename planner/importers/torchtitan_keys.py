"""Lists the keys of torchtitan's TOML, and what becomes of each.

Keys and defaults are those of torchtitan 0.2.2 (torchtitan/config/job_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.importers.foreign_keys import Key, fixed_key, ignored_keys, mapped_key

PROGRAM = "JobConfig of torchtitan 0.2.2"
_OPTIMIZER = "train.optimizer"
_SHARD = "parallel.dp_shard"

KEYS: Mapping[str, Key] = {
    "model.name": mapped_key("model.decoder", "text", "llama3", "llama3 by its flavor; others by --model"),
    "model.flavor": mapped_key("model.decoder", "text", "debugmodel"),
    "model.converters": fixed_key(([],), "converters (float8, mx) are not planned"),
    "optimizer.name": mapped_key(_OPTIMIZER, "text", "AdamW"),
    "optimizer.lr": mapped_key(_OPTIMIZER, "number", 8e-4),
    "optimizer.beta1": mapped_key(_OPTIMIZER, "number", 0.9),
    "optimizer.beta2": mapped_key(_OPTIMIZER, "number", 0.95),
    "optimizer.eps": mapped_key(_OPTIMIZER, "number", 1e-8),
    "optimizer.weight_decay": mapped_key(_OPTIMIZER, "number", 0.1),
    "optimizer.implementation": mapped_key(_OPTIMIZER, "text", "fused", "for-loop, foreach or fused"),
    "optimizer.early_step_in_backward": mapped_key("train.optimizer_in_backward", "flag", False),
    "training.local_batch_size": mapped_key("train.micro_batch_size", "whole", 8),
    "training.global_batch_size": mapped_key("train.gradient_accumulation_steps", "whole", -1),
    "training.seq_len": mapped_key("train.sequence_length", "whole", 2048),
    "training.max_norm": mapped_key("train.gradient_clipping", "number", 1.0),
    "training.enable_cpu_offload": mapped_key(f"{_SHARD}.offload", "flag", False, "true is cpu"),
    "training.dtype": mapped_key("model.parameter_dtype", "text", "float32"),
    "training.mixed_precision_param": mapped_key(
        "train.precision", "text", "bfloat16", "fsdp_mixed where it shards, bf16_autocast under DDP, else none"
    ),
    "training.mixed_precision_reduce": fixed_key(("float32",), "gradients are reduced in float32"),
    "parallelism.data_parallel_replicate_degree": mapped_key("parallel.dp_replicate.degree", "whole", 1),
    "parallelism.data_parallel_shard_degree": mapped_key(f"{_SHARD}.degree", "whole", -1, "-1: the rest of the GPUs"),
    "parallelism.fsdp_reshard_after_forward": mapped_key(f"{_SHARD}.reshard_after_forward", "text", "default"),
    "parallelism.tensor_parallel_degree": mapped_key("parallel.tp", "whole", 1, "with sequence_parallel"),
    "parallelism.disable_loss_parallel": mapped_key("parallel.tp.loss_parallel", "flag", False, "false is true"),
    "parallelism.enable_async_tensor_parallel": fixed_key((False,), "asynchronous tensor parallelism is not planned"),
    "parallelism.pipeline_parallel_degree": mapped_key("parallel.pp.degree", "whole", 1),
    "parallelism.pipeline_parallel_schedule": mapped_key("parallel.pp.schedule", "text", "1F1B"),
    "parallelism.pipeline_parallel_microbatch_size": mapped_key("train.micro_batch_size", "whole", 1, "in a pipeline"),
    "parallelism.pipeline_parallel_schedule_csv": fixed_key(("", None), "schedules of a file are not planned"),
    "parallelism.module_fqns_per_model_part": fixed_key((None,), "write parallel.pp.split in JOB.yaml"),
    "parallelism.pipeline_parallel_layers_per_stage": fixed_key((None,), "write parallel.pp.split in JOB.yaml"),
    "parallelism.pipeline_parallel_first_stage_less_layers": fixed_key((1,), "write parallel.pp.split in JOB.yaml"),
    "parallelism.pipeline_parallel_last_stage_less_layers": fixed_key((1,), "write parallel.pp.split in JOB.yaml"),
    "parallelism.context_parallel_degree": mapped_key("parallel.cp.degree", "whole", 1),
    "parallelism.context_parallel_rotate_method": mapped_key("parallel.cp.rotate", "text", "allgather"),
    "parallelism.expert_parallel_degree": fixed_key((1,), "torchtitan's models with experts are not planned"),
    "parallelism.expert_tensor_parallel_degree": fixed_key((1,), "torchtitan's models with experts are not planned"),
    "activation_checkpoint.mode": mapped_key("train.recompute", "text", "selective"),
    "activation_checkpoint.selective_ac_option": mapped_key("train.recompute", "text", "2", "op, or every n-th layer"),
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": fixed_key(
        (["moe.router.gate"],), "shapes that are recomputed by name are not planned"
    ),
    "compile.enable": mapped_key("train.compile", "flag", False, "where the model is among the components"),
    "compile.components": mapped_key("train.compile", "any", None),
    "fault_tolerance.enable": fixed_key((False,), "torchft is not planned"),
    "validation.enable": mapped_key("train.eval", "flag", False),
    "validation.local_batch_size": mapped_key("train.eval.micro_batch_size", "whole", 8),
    "validation.freq": mapped_key("train.eval.every", "whole", 10),
    "validation.seq_len": mapped_key("train.eval", "whole", 2048, "as the training's; others are refused"),
    "experimental.custom_import": fixed_key(("",), "code of one's own is not read"),
    "experimental.custom_args_module": fixed_key(("",), "code of one's own is not read"),
    "comm.mode": fixed_key(("default",), "runs without peers are not planned"),
    "debug.deterministic": fixed_key((False,), "it changes the workspaces and kernels of CUDA"),
    **ignored_keys(
        "model.hf_assets_path", "model.print_after_conversion", "compile.backend", "activation_checkpoint.early_stop",
        "activation_checkpoint.memory_budget", "activation_checkpoint.visualize_memory_budget_pareto",
        "activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check",
        "activation_checkpoint.debug", "training.dataset", "training.dataset_path", "training.steps",
        "training.gc_freq", "training.gc_debug", "parallelism.context_parallel_load_balancer",
        "parallelism.expert_parallel_comm_backend", "parallelism.pipeline_parallel_expert_parallel_overlap",
        "debug.seed", "debug.deterministic_warn_only", "debug.moe_force_load_balance",
    ),
}  # fmt: skip
IGNORED_SECTIONS = (
    "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "quantize", "comm", "memory_estimation",
    "fault_tolerance", "validation", "training.dataloader",
)  # fmt: skip
"""Tables whose other keys change no tensor on the device while it trains; `quantize` is read by converters alone."""

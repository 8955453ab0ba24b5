"""Lists Megatron-LM's arguments, and what becomes of each.

Arguments and defaults are those of Megatron-LM with megatron-core 0.20 (megatron/training/arguments.py,
core/transformer/transformer_config.py, core/model_parallel_config.py). Names are written with underscores.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.importers.foreign_keys import Key, fixed_key, ignored_keys, mapped_key

_MODEL = "model"
_OPTIMIZER = "train.optimizer"
_RECOMPUTE = "train.recompute"


def _switch(to: str, why: str = "") -> Key:
    """An argument without a value."""
    return mapped_key(to, "flag", False, why)


def _refused_switch(why: str) -> Key:
    return fixed_key((False,), why)


def _refused_value(why: str) -> Key:
    return fixed_key((None,), why)


_FP8 = "fp8 and fp4 are not planned"
_MLA = "multi-latent attention is not planned here"
_SPLIT = "write parallel.pp.split in JOB.yaml"
_MOE = "experts of this kind are not planned here"
_OTHER_SHARDING = "another sharding than the distributed optimizer is not planned here"
_OFFLOAD = "what rests on the host under Megatron-LM is not planned"

KEYS: Mapping[str, Key] = {
    "num_layers": mapped_key(_MODEL, "whole", None, "required"),
    "hidden_size": mapped_key(_MODEL, "whole", None, "required"),
    "num_attention_heads": mapped_key(_MODEL, "whole", None, "required"),
    "group_query_attention": _switch(_MODEL),
    "num_query_groups": mapped_key(_MODEL, "whole", None, "beside --group-query-attention"),
    "ffn_hidden_size": mapped_key(_MODEL, "whole", None, "default: 4 hidden sizes, with --swiglu 8/3 of it, in 64ths"),
    "kv_channels": mapped_key(_MODEL, "whole", None),
    "vocab_size": mapped_key(_MODEL, "whole", None, "required: tokenizers are not read; padded as Megatron-LM does"),
    "make_vocab_size_divisible_by": mapped_key(_MODEL, "whole", 128, "times the ranks of tp"),
    "max_position_embeddings": mapped_key(_MODEL, "whole", None),
    "position_embedding_type": mapped_key(_MODEL, "text", "learned_absolute", "or rope"),
    "use_rotary_position_embeddings": _switch(_MODEL),
    "normalization": mapped_key(_MODEL, "text", "LayerNorm", "or RMSNorm"),
    "swiglu": _switch(_MODEL),
    "disable_bias_linear": _switch(_MODEL),
    "untie_embeddings_and_output_weights": _switch(_MODEL),
    "qk_layernorm": _switch(_MODEL),
    "hidden_dropout": mapped_key(_MODEL, "number", 0.1, "of learned positions; else a note"),
    "attention_dropout": mapped_key(_MODEL, "number", 0.1, "of learned positions; else a note"),
    "num_experts": mapped_key(_MODEL, "whole", None, "a mixture of experts as Mixtral has it"),
    "moe_router_topk": mapped_key(_MODEL, "whole", 2),
    "moe_ffn_hidden_size": mapped_key(_MODEL, "whole", None, "default: ffn_hidden_size"),
    "seq_length": mapped_key("train.sequence_length", "whole", None, "required"),
    "micro_batch_size": mapped_key("train.micro_batch_size", "whole", None, "required"),
    "global_batch_size": mapped_key(
        "train.gradient_accumulation_steps", "whole", None, "over micro_batch_size and the ranks of data"
    ),
    "bf16": _switch("train.precision", "parameters and optimizer in float32 beside it; fsdp_mixed where sharded"),
    "fp16": _refused_switch("a loss scale beside parameters in 16 bits is not planned; train in bf16"),
    "grad_reduce_in_bf16": _switch("parallel.dp_shard.reduce_dtype"),
    "clip_grad": mapped_key("train.gradient_clipping", "number", 1.0),
    "optimizer": mapped_key(_OPTIMIZER, "text", "adam", "adam is fused AdamW; or sgd"),
    "lr": mapped_key(_OPTIMIZER, "number", None),
    "weight_decay": mapped_key(_OPTIMIZER, "number", 0.01),
    "adam_beta1": mapped_key(_OPTIMIZER, "number", 0.9),
    "adam_beta2": mapped_key(_OPTIMIZER, "number", 0.999),
    "adam_eps": mapped_key(_OPTIMIZER, "number", 1e-8),
    "sgd_momentum": mapped_key(_OPTIMIZER, "number", 0.9),
    "use_distributed_optimizer": _switch("parallel.dp_shard", "without it parallel.dp_replicate"),
    "tensor_model_parallel_size": mapped_key("parallel.tp.degree", "whole", 1),
    "sequence_parallel": _switch("parallel.tp.sequence_parallel"),
    "pipeline_model_parallel_size": mapped_key("parallel.pp.degree", "whole", 1),
    "num_layers_per_virtual_pipeline_stage": mapped_key("parallel.pp.schedule", "whole", None, "Interleaved1F1B"),
    "num_virtual_stages_per_pipeline_rank": mapped_key("parallel.pp.schedule", "whole", None, "Interleaved1F1B"),
    "context_parallel_size": mapped_key("parallel.cp.degree", "whole", 1),
    "cp_comm_type": mapped_key("parallel.cp.rotate", "text", "p2p", "p2p is alltoall, all_gather is allgather"),
    "expert_model_parallel_size": mapped_key("parallel.ep.degree", "whole", 1),
    "recompute_activations": _switch(_RECOMPUTE, "of core attention, which flash attention does anyhow: none"),
    "recompute_granularity": mapped_key(_RECOMPUTE, "text", None, "full, or selective (of core attention: none)"),
    "recompute_method": mapped_key(_RECOMPUTE, "text", None, "uniform, or block over all layers or none"),
    "recompute_num_layers": mapped_key(_RECOMPUTE, "whole", None),
    "attention_backend": fixed_key(("auto", "flash", "fused"), "unfused attention keeps its scores: not planned here"),
    "recompute_modules": fixed_key((None, "core_attn"), "recomputing other modules is not planned"),
    "decoder_first_pipeline_num_layers": _refused_value(_SPLIT),
    "decoder_last_pipeline_num_layers": _refused_value(_SPLIT),
    "pipeline_model_parallel_layout": _refused_value(_SPLIT),
    "account_for_embedding_in_pipeline_split": _refused_switch(_SPLIT),
    "account_for_loss_in_pipeline_split": _refused_switch(_SPLIT),
    "expert_tensor_parallel_size": fixed_key((None, "1"), "experts that are split by tp are not planned"),
    "hierarchical_context_parallel_sizes": _refused_value("context parallelism in two levels is not planned"),
    "multi_latent_attention": _refused_switch(_MLA),
    "squared_relu": _refused_switch("another feed-forward is not planned here"),
    "quick_geglu": _refused_switch("another feed-forward is not planned here"),
    "add_qkv_bias": _refused_switch("biases of queries, keys and values alone are not planned here"),
    "apply_residual_connection_post_layernorm": _refused_switch("another residual stream is not planned here"),
    "fp32_residual_connection": _refused_switch("residuals in float32 are not planned here"),
    "window_size": _refused_value("attention in windows is not planned here"),
    "mtp_num_layers": _refused_value("multi-token prediction is not planned"),
    "hybrid_layer_pattern": _refused_value("layers without attention are not planned"),
    "hybrid_override_pattern": _refused_value("layers without attention are not planned"),
    "spec": _refused_value("layers of one's own are not read; run the program itself (planner run)"),
    "yaml_cfg": _refused_value("arguments are read from the line alone"),
    "heterogeneous_layers_config_path": _refused_value("layers that differ are not planned here"),
    "experimental_attention_variant": _refused_value("other attention is not planned"),
    "encoder_num_layers": _refused_value("encoders are not planned here"),
    "freeze_all_layers": _refused_switch("frozen layers are not planned here"),
    "moe_layer_freq": fixed_key((None, "1"), _MOE),
    "moe_shared_expert_intermediate_size": _refused_value(_MOE),
    "moe_expert_capacity_factor": _refused_value("tokens that are dropped or padded are not planned"),
    "moe_layer_recompute": _refused_switch("recomputing experts alone is not planned"),
    "moe_latent_size": _refused_value(_MOE),
    "fp8_format": _refused_value(_FP8),
    "fp8_param_gather": _refused_switch(_FP8),
    "fp4_format": _refused_value(_FP8),
    "fp4_param_gather": _refused_switch(_FP8),
    "use_torch_fsdp2": _refused_switch(_OTHER_SHARDING),
    "use_megatron_fsdp": _refused_switch(_OTHER_SHARDING),
    "use_custom_fsdp": _refused_switch(_OTHER_SHARDING),
    "num_distributed_optimizer_instances": fixed_key((None, "1"), _OTHER_SHARDING),
    "use_precision_aware_optimizer": _refused_switch("states of the optimizer in fewer bits are not planned"),
    "optimizer_cpu_offload": _refused_switch(_OFFLOAD),
    "cpu_offloading": _refused_switch(_OFFLOAD),
    "cpu_offloading_num_layers": _refused_value(_OFFLOAD),
    "fine_grained_activation_offloading": _refused_switch(_OFFLOAD),
    "distribute_saved_activations": _refused_switch("inputs of layers that are split over tp are not planned"),
    "use_nccl_ub": _refused_switch("buffers that NCCL registers are not planned"),
    "enable_cuda_graph": _refused_switch("CUDA graphs of Megatron-LM are not planned"),
    "external_cuda_graph": _refused_switch("CUDA graphs of Megatron-LM are not planned"),
    "cuda_graph_impl": fixed_key((None, "none"), "CUDA graphs of Megatron-LM are not planned"),
    "perform_rl_step": _refused_switch("what reinforcement learning adds is not planned"),
    **ignored_keys(
        # data and tokenizer
        "data_path", "train_data_path", "valid_data_path", "test_data_path", "data_args_path", "data_cache_path",
        "split", "mock_data", "num_workers", "dataloader_type", "tokenizer_type", "tokenizer_model", "vocab_file",
        "merge_file", "no_mmap_bin_files", "no_create_attention_mask_in_dataloader", "eod_mask_loss", "vocab_extra_ids",
        "num_dataset_builder_threads", "tiktoken_pattern", "trust_remote_code",
        # how long and how fast it learns
        "train_iters", "train_samples", "lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_warmup_iters",
        "lr_warmup_samples", "lr_warmup_fraction", "lr_warmup_init", "min_lr", "lr_wsd_decay_style",
        "lr_wsd_decay_iters", "start_weight_decay", "end_weight_decay", "weight_decay_incr_style",
        "override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler", "rampup_batch_size", "decoupled_lr",
        "exit_interval", "exit_duration_in_mins", "exit_signal_handler", "eval_iters", "eval_interval", "skip_train",
        "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis", "seed",
        "init_method_std", "init_method_xavier_uniform", "norm_epsilon", "moe_aux_loss_coeff", "moe_z_loss_coeff",
        "moe_router_load_balancing_type", "moe_router_pre_softmax", "moe_router_topk_scaling_factor",
        "rotary_base", "rotary_percent", "rotary_interleaved", "rotary_seq_len_interpolation_factor",
        "use_rope_scaling", "rope_scaling_factor", "no_position_embedding",
        # logging and checkpoints
        "log_interval", "log_throughput", "log_params_norm", "log_num_zeros_in_grad", "log_progress",
        "log_timers_to_tensorboard", "log_memory_to_tensorboard", "log_validation_ppl_to_tensorboard",
        "log_world_size_to_tensorboard", "log_batch_size_to_tensorboard", "log_straggler", "timing_log_level",
        "timing_log_option", "tensorboard_dir", "tensorboard_log_interval", "tensorboard_queue_size", "wandb_project",
        "wandb_exp_name", "wandb_entity", "wandb_save_dir", "no_one_logger", "one_logger_project", "logging_level",
        "profile", "profile_step_start", "profile_step_end", "profile_ranks", "use_pytorch_profiler", "save", "load",
        "save_interval", "ckpt_format", "async_save", "no_save_optim", "no_save_rng", "no_load_optim", "no_load_rng",
        "finetune", "dist_ckpt_format", "use_dist_ckpt", "dist_ckpt_strictness", "auto_detect_ckpt_format",
        "ckpt_fully_parallel_load", "no_ckpt_fully_parallel_save", "use_checkpoint_args", "exit_on_missing_checkpoint",
        # how the ranks meet
        "distributed_backend", "distributed_timeout_minutes", "local_rank", "nccl_communicator_config_path",
        "use_tp_pp_dp_mapping", "manual_gc", "manual_gc_interval", "manual_gc_eval", "adlr_autoresume",
    ),
}  # fmt: skip

NOTED = (
    "transformer_impl", "use_flash_attn", "use_mcore_models", "use_legacy_models", "accumulate_allreduce_grads_in_fp32",
    "attention_softmax_in_fp32", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm",
    "no_overlap_p2p_communication", "no_masked_softmax_fusion", "no_bias_gelu_fusion", "no_bias_swiglu_fusion",
    "no_bias_dropout_fusion", "no_rope_fusion", "no_persist_layer_norm", "no_gradient_accumulation_fusion",
    "no_async_tensor_model_parallel_allreduce", "cross_entropy_loss_fusion", "cross_entropy_fusion_impl",
    "tp_comm_overlap", "disable_tp_comm_bulk_wgrad", "disable_tp_comm_bulk_dgrad", "disable_tp_comm_overlap_rs",
    "disable_tp_comm_overlap_ag", "disable_tp_comm_split_ag", "disable_tp_comm_split_rs", "ddp_bucket_size",
    "ddp_num_buckets", "moe_grouped_gemm", "moe_token_dispatcher_type", "moe_permute_fusion", "moe_router_dtype",
    "moe_router_fusion", "deallocate_pipeline_outputs", "calculate_per_token_loss",
    "defer_embedding_wgrad_compute", "apply_layernorm_1p", "check_for_nan_in_loss_and_grad",
    "no_check_for_nan_in_loss_and_grad",
)  # fmt: skip
"""Arguments of Megatron-LM's kernels and buffers that a spec cannot say: the importer names those that are given."""

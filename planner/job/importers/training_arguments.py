"""Reads transformers' TrainingArguments, what its Trainer makes of them, and its optimizer (5.23.0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers import drafts
from planner.job.importers.drafts import (
    Draft,
    Key,
    contradiction,
    fixed_key,
    fixed_keys,
    ignored_keys,
    mapped_key,
    supposed_key,
    unite_drafts,
)
from planner.job.nodes import Node, node_from_data

# Fields, types and defaults are those of transformers 5.23.0 (training_args.py); what they do is in its trainer.py,
# trainer_optimizer.py and modeling_utils.py, and in accelerate 1.15.0 (accelerator.py). A test holds the table to the
# installed transformers.
PROGRAM = "TrainingArguments of transformers 5.23"
_OPTIMIZER = "train.optimizer"
_DDP = "parallel.dp_replicate"
_SHARD = "parallel.dp_shard"

EIGHT_BITS = fixed_key(
    (None, False),
    "weights in eight bits are not planned; `planner run` plans the program as it is, load_in_4bit is planned",
)
LIGER = supposed_key(
    "flag",
    False,
    "the model's own layers and loss in the place of those of Liger or cut cross entropy, which keep less: the plan is"
    " an upper bound (`planner run` plans the program as it is)",
)
_BNB = {"adamw": "AdamW", "lion": "Lion", "ademamix": "AdEMAMix"}
_IN_8_BITS = {"embeddings_in_32_bits": True}
"""The Trainer keeps the state of every embedding in full beside 8-bit optimizers."""
_ADAMS: Mapping[str, dict[str, Any]] = {
    "adamw_torch": {"name": "AdamW"},
    "adamw_torch_fused": {"name": "AdamW", "fused": True},
    "adamw_torch_8bit": {"name": "torchao.AdamW8bit", "block_size": 256},
    "adamw_torch_4bit": {"name": "torchao.AdamW4bit", "block_size": 256},
    "adamw_hf": {"name": "AdamW", "foreach": False},  # of transformers 4, one parameter after the other
    "adamw_bnb_8bit": {"name": "bitsandbytes.AdamW8bit", **_IN_8_BITS},
    **{f"{base}_8bit": {"name": f"bitsandbytes.{kind}8bit", **_IN_8_BITS} for base, kind in _BNB.items()},
    **{f"paged_{base}_8bit": {"name": f"bitsandbytes.Paged{kind}8bit", **_IN_8_BITS} for base, kind in _BNB.items()},
    **{f"paged_{base}_32bit": {"name": f"bitsandbytes.Paged{kind}"} for base, kind in _BNB.items()},
    "paged_adamw": {"name": "bitsandbytes.PagedAdamW"},
    "lion_32bit": {"name": "bitsandbytes.Lion"},
    "ademamix": {"name": "bitsandbytes.AdEMAMix"},
    "rmsprop_bnb": {"name": "bitsandbytes.RMSprop"},
    "rmsprop_bnb_8bit": {"name": "bitsandbytes.RMSprop8bit", **_IN_8_BITS},
    "rmsprop_bnb_32bit": {"name": "bitsandbytes.RMSprop"},
}
_OF_TORCH: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "sgd": ("SGD", ("momentum", "dampening", "weight_decay"), ("nesterov",)),
    "adagrad": ("Adagrad", ("lr_decay", "weight_decay", "eps"), ()),
    "rmsprop": ("RMSprop", ("momentum", "alpha", "eps", "weight_decay"), ("centered",)),
}
"""Class, and the numbers and flags that `optim_args` may give it."""
_OF_TORCHAO = ("adamw_torch_8bit", "adamw_torch_4bit")
_ADAFACTOR = {"name": "transformers.Adafactor", "scale_parameter": False, "relative_step": False}
PLANNED = (*_ADAMS, "adafactor", *_OF_TORCH)

KEYS: Mapping[str, Key] = {
    "per_device_train_batch_size": mapped_key("train.micro_batch_size", "whole", 8),
    "gradient_accumulation_steps": mapped_key("train.gradient_accumulation_steps", "whole", 1),
    "max_grad_norm": mapped_key("train.gradient_clipping", "number", 1.0, "0: the norm is computed, not planned"),
    "optim": Key(
        _OPTIMIZER, "text", "adamw_torch_fused", PLANNED, "others are not planned; write train.optimizer in JOB.yaml"
    ),
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
    "use_liger_kernel": LIGER,
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
    **fixed_keys((False,), "there is no CUDA GPU to plan for", "use_mps_device", "use_ipex"),
    "adafactor": mapped_key(_OPTIMIZER, "flag", False, "true: optim is adafactor"),
    "sharded_ddp": fixed_key(("", None, [], False), "fairscale is not planned; write fsdp"),
    "mp_parameters": fixed_key(("",), "SageMaker's model parallelism is not planned"),
    "fsdp_min_num_params": fixed_key((0,), "wrapping by size is not planned"),
    "fsdp_transformer_layer_cls_to_wrap": fixed_key((None,), "write transformer_layer_cls_to_wrap in fsdp_config"),
    "split_batches": fixed_key((None, False), "each rank would take a part of per_device_train_batch_size"),
    "tpu_num_cores": fixed_key((None,), "there is no GPU to plan for"),
    **ignored_keys(
        "overwrite_output_dir", "warmup_ratio", "logging_dir", "save_safetensors",
        "jit_mode_eval", "fp16_opt_level", "half_precision_backend", "fp16_backend", "tpu_metrics_debug", "past_index",
        "group_by_length", "use_legacy_prediction_loop", "include_inputs_for_metrics", "push_to_hub_model_id",
        "push_to_hub_organization", "push_to_hub_token", "ray_scope", "include_tokens_per_second",
        "dispatch_batches", "_n_gpu",
    ),
}  # fmt: skip
"""Fields of transformers 4 that files still have (4.20 to 4.57, training_args.py)."""

RENAMED: Mapping[str, str] = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "torchdynamo": "torch_compile_backend",
    "xpu_backend": "ddp_backend",
}
"""Fields of transformers 4 by the names that they have today, as their deprecations say (4.31 and 4.48,
training_args.py)."""

FLAGS_OF_SCRIPTS = ("activation_checkpointing", "gradient_checkpointing", "fsdp")
"""Those that HfArgumentParser takes without a value though they are no plain bools."""


Values = Mapping[str, Node]


def optimizer_of(values: Values) -> dict[str, Any]:
    """`train.optimizer` as a spec writes it. Raises SpecError for an optimizer that is not planned."""
    name, options = str(values["optim"].value), values["optim_args"]
    if name in _OF_TORCHAO and options.value:
        raise SpecError(
            f"optim_args is {options.summary} beside {name}, and is not planned",
            allowed="null",
            remedy=f"write train.optimizer in JOB.yaml ({_ADAMS[name]['name']} takes block_size), without optim",
            place=options.place,
        )
    rate, decay = values["learning_rate"].value, values["weight_decay"].value
    if name in _ADAMS:
        betas = [values["adam_beta1"].value, values["adam_beta2"].value]
        return {**_ADAMS[name], "lr": rate, "betas": betas, "eps": values["adam_epsilon"].value, "weight_decay": decay}
    if name == "adafactor":
        return {**_ADAFACTOR, "lr": rate, "weight_decay": decay}
    kind, numbers, flags = _OF_TORCH[name]
    optimizer: dict[str, Any] = {"name": kind, "lr": rate, "weight_decay": decay}
    for part in str(options.value or "").replace(" ", "").split(","):
        key, _, value = part.partition("=")
        try:
            if key in numbers:
                optimizer[key] = float(value)
            elif key in flags:
                optimizer[key] = value.lower() in ("true", "1", "yes")
            elif key:
                raise ValueError
        except ValueError:
            raise SpecError(
                f"optim_args holds {part[:80]!a}",
                allowed=", ".join(f"{option}=..." for option in (*numbers, *flags)),
                remedy=f"write what {name} takes",
                place=options.place,
            ) from None
    return optimizer


WRITER = "TrainingArguments.to_json_string() writes"
_ALL = {**KEYS, **RETIRED}
OPTIMIZER = ("optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
_DDP_FLAGS = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")
_EVALUATION = ("eval_strategy", "eval_steps", "logging_steps", "per_device_eval_batch_size")
_USUAL_STEPS = 100


@dataclass(frozen=True, slots=True)
class TrainingArguments:
    """What is written, by name; what is not has the default of its field."""

    written: Mapping[str, Node]
    folder: Path
    """Where paths that they name start."""

    def __getitem__(self, name: str) -> Node:
        return self.written.get(name) or node_from_data(KEYS[name].default, "the defaults of TrainingArguments", name)

    def says(self, *names: str) -> bool:
        return any(name in self.written for name in names)

    def is_set(self, name: str) -> bool:
        """Written, and not null."""
        return self[name].value is not None

    @property
    def supposed(self) -> list[str]:
        """What is planned in the place of what is written."""
        return drafts.list_supposed(_ALL, self.written)

    @property
    def ignored_keys(self) -> list[str]:
        """Names of what is written and does not matter."""
        return [name for name in self.written if not _ALL[name].matters]


def of_nodes(written: Mapping[str, Node], folder: Path) -> TrainingArguments:
    """Those of values that somebody read. Raises SpecError for what is unknown, of a wrong type or not understood."""
    written = drafts.rename(written, RENAMED)
    drafts.check_all(_ALL, written, PROGRAM)
    if (asked := written.get("adafactor")) is not None and asked.value:
        written["optim"] = node_from_data("adafactor", asked.place, "optim")  # whatever optim says
    return TrainingArguments(written, folder)


def join_arguments(first: TrainingArguments, second: TrainingArguments | None) -> TrainingArguments:
    """Of two sources, or the first alone. Raises SpecError where they contradict each other in what matters."""
    if second is None:
        return first
    mattering = [
        {name: node for name, node in source.written.items() if _ALL[name].matters} for source in (first, second)
    ]
    return TrainingArguments({**second.written, **first.written, **unite_drafts(*mattering)}, first.folder)


def precision_of(arguments: TrainingArguments) -> Node | None:
    """`bf16` or `fp16`, if one is asked for."""
    asked = [
        node_from_data(name, node.place, node.path) for name in ("bf16", "fp16") if (node := arguments[name]).value
    ]
    if len(asked) > 1:
        raise contradiction("precision", *asked)
    return asked[0] if asked else None


def fill_draft(draft: Draft, arguments: TrainingArguments, *, clips: bool) -> None:
    """What holds for every job; `clips` is false where DeepSpeed's config takes the place of max_grad_norm."""
    direct = {
        "per_device_train_batch_size": "train.micro_batch_size",
        "gradient_accumulation_steps": "train.gradient_accumulation_steps",
        **({"max_grad_norm": "train.gradient_clipping"} if clips else {}),
        "dataloader_num_workers": "train.data_loader.workers",
        "dataloader_pin_memory": "train.data_loader.pin_memory",
    }
    for name, path in direct.items():
        if arguments.says(name):
            draft.say(path, arguments[name])
        else:
            draft.suppose(path, arguments[name].value, arguments[name].place)
    optimizer = optimizer_of({name: arguments[name] for name in OPTIMIZER})
    tell = draft.say_value if arguments.says("optim") else draft.suppose
    tell("train.optimizer", optimizer, arguments["optim"].place)
    if (asked := _recompute(arguments)).value:
        options = arguments["activation_checkpointing_kwargs"]
        if options.value is None:
            options = arguments["gradient_checkpointing_kwargs"]
        every = _recomputes_every(options) if options.value is not None else 1
        draft.say_value("train.recompute", {"every": every} if every > 1 else "full", asked.place)
    # The Trainer compiles the model whole (transformers 5.23, training_args.py); backend or mode alone ask for it.
    for name in ("torch_compile", "torch_compile_backend", "torch_compile_mode"):
        if arguments[name].value:
            draft.say_value("train.compile.scope", "model", arguments[name].place)
            break
    for name in ("backend", "mode"):
        if (node := arguments[f"torch_compile_{name}"]).value:
            draft.say_value(f"train.compile.{name}", node.value, node.place)
    _tell_evaluation(draft, arguments)
    if arguments.is_set("dataloader_prefetch_factor"):
        draft.say("train.data_loader.prefetch_factor", arguments["dataloader_prefetch_factor"])
    config = arguments["accelerator_config"]
    if config.value is not None:
        inner = config.mapping("a mapping, as to_json_string() writes it")
        drafts.check_all(ACCELERATOR_KEYS, inner, "accelerator_config")
        drafts.check_all(ACCUMULATION_KEYS, _accumulation(arguments), "gradient_accumulation_kwargs")
    if arguments.is_set("run_name"):
        draft.suppose("metadata.name", arguments["run_name"].value, arguments["run_name"].place)


def tell_ddp(draft: Draft, arguments: TrainingArguments) -> None:
    """How the Trainer asks for DistributedDataParallel: unused parameters are looked for unless it recomputes."""
    recomputes = bool(_recompute(arguments).value)
    place = arguments["ddp_find_unused_parameters"].place
    draft.suppose(f"{_DDP}.find_unused_parameters", not recomputes, place)
    for name in _DDP_FLAGS:
        if arguments.is_set(name):
            draft.say(f"{_DDP}.{name.removeprefix('ddp_')}", arguments[name])
    if syncs_each_batch(arguments):
        draft.say_value(f"{_DDP}.no_sync", False, _accumulation(arguments)["sync_each_batch"].place)


def without_effect(arguments: TrainingArguments, under: str, world: int) -> list[str]:
    """`under` is ddp, fsdp or deepspeed. Names of what is written and matters to other jobs than this one."""
    off = {
        _DDP_FLAGS: under != "ddp" or world == 1,
        _EVALUATION: arguments["eval_strategy"].value == "no",
        ("fsdp_config",): not arguments["fsdp"].value,
        ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"): not _recompute(arguments).value,
        ("optim_args",): str(arguments["optim"].value).startswith("adamw"),
    }
    return [name for names, is_off in off.items() if is_off for name in names if arguments.says(name)]


def syncs_each_batch(arguments: TrainingArguments) -> bool:
    """Gradients are reduced after every micro-batch."""
    node = _accumulation(arguments).get("sync_each_batch")
    return node is not None and node.value is True


def _recompute(arguments: TrainingArguments) -> Node:
    """The new name if it is set, else the old one."""
    new = arguments["activation_checkpointing"]
    return new if new.value is not None else arguments["gradient_checkpointing"]


def _recomputes_every(options: Node) -> int:
    """After how many layers one is recomputed."""
    written = options.mapping()
    drafts.check_all(RECOMPUTE_KEYS, written, "activation_checkpointing_kwargs")
    every = written.get("every_n_layers")
    if written.keys() - {"every_n_layers", "offload"} and "use_reentrant" not in written:
        raise SpecError(
            f"{options.name} does not say use_reentrant, and torch then refuses or is reentrant",
            allowed='"use_reentrant": false',
            remedy="add it",
            place=options.place,
        )
    return 1 if every is None or not isinstance(every.value, int) else every.value


RECOMPUTE_KEYS = {
    "use_reentrant": drafts.fixed_key((False,), "reentrant recomputation is not planned"),
    "every_n_layers": drafts.mapped_key("train.recompute.every", "whole", 1),
    "offload": drafts.fixed_key((False, None), "recomputation from activations on the host is not planned"),
    **drafts.ignored_keys("preserve_rng_state", "determinism_check", "debug", "early_stop"),
}


def _tell_evaluation(draft: Draft, arguments: TrainingArguments) -> None:
    strategy = arguments["eval_strategy"]
    if strategy.value not in ("no", "steps", "epoch"):
        raise SpecError(
            f"eval_strategy is {strategy.summary}",
            allowed="no, steps, epoch",
            remedy="write one of these",
            place=strategy.place,
        )
    if strategy.value == "no":
        return
    steps: Any = arguments["eval_steps"].value or arguments["logging_steps"].value
    every = int(steps) if strategy.value == "steps" and steps >= 1 else _USUAL_STEPS
    batch = arguments["per_device_eval_batch_size"]
    draft.say_value("train.eval", {"micro_batch_size": batch.value, "every": every}, strategy.place)


ACCELERATOR_KEYS = {
    "split_batches": drafts.fixed_key((False,), "each rank would take a part of per_device_train_batch_size"),
    "gradient_accumulation_kwargs": drafts.mapped_key(f"{_DDP}.no_sync", "mapping", None, "sync_each_batch"),
    **drafts.ignored_keys(
        "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking", "use_configured_state"
    ),
}
ACCUMULATION_KEYS = {
    "num_steps": drafts.fixed_key((None, 1), "write gradient_accumulation_steps"),
    "sync_each_batch": drafts.mapped_key(f"{_DDP}.no_sync", "flag", False),
    **drafts.ignored_keys("adjust_scheduler", "sync_with_dataloader"),
}


def _accumulation(arguments: TrainingArguments) -> Mapping[str, Node]:
    config = arguments["accelerator_config"].value
    options = config.get("gradient_accumulation_kwargs") if isinstance(config, dict) else None
    return options.value if options is not None and isinstance(options.value, dict) else {}

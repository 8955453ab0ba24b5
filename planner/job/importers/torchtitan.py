"""Reads torchtitan's TOML: its Trainer as planner plans it, Llama 3 by the built-in decoder.

What its keys do is in torchtitan 0.2.2 (train.py, models/llama3/infra/parallelize.py, distributed/utils.py,
distributed/activation_checkpoint.py). `tests/torchtitan_on_paper.py` sets such specs beside torchtitan's own Trainer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers import drafts
from planner.job.importers.drafts import Key, fixed_key, ignored_keys, mapped_key
from planner.job.importers.recipes import Recipe, leaves
from planner.job.json_text import file_text
from planner.job.nodes import Node, node_from_data

# Keys and defaults are those of torchtitan 0.2.2 (torchtitan/config/job_config.py).
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
    "model.norm_type": fixed_key(("rmsnorm", "fused_rmsnorm"), "other norms are not planned"),
    "model.use_flex_attn": fixed_key((False,), "flex attention is not planned"),
    "training.fp8_linear": fixed_key(("", False), "float8 is not planned"),
    "training.data_parallel_type": fixed_key(("fsdp",), "write data_parallel_replicate_degree"),
    "float8.enable_float8_linear": fixed_key((False,), "float8 is not planned"),
    "optimizer.fused": mapped_key(_OPTIMIZER, "flag", None, "the old name of implementation: fused"),
    "experimental.pipeline_parallel_microbatches": fixed_key((None,), "write pipeline_parallel_microbatch_size"),
    "experimental.pipeline_parallel_split_points": fixed_key(([], "", None), "write parallel.pp.split in JOB.yaml"),
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
        "model.tokenizer_path", "model.attn_mask_type", "training.warmup_steps", "training.dump_folder", "float8.*",
        "mx.*", "job.*", "profiling.*", "metrics.*", "lr_scheduler.*",
        "checkpoint.*", "quantize.*", "comm.*", "memory_estimation.*", "fault_tolerance.*", "validation.*",
        "training.dataloader.*", "debug.seed", "debug.deterministic_warn_only", "debug.moe_force_load_balance",
    ),
}  # fmt: skip
RENAMED: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",  # before 0.1.0
    "training.compile": "compile.enable",  # until 0.1.0
    "training.deterministic": "debug.deterministic",
    "training.seed": "debug.seed",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.enable_fp8_linear": "float8.enable_float8_linear",
    "float8.enable_fp8_linear": "float8.enable_float8_linear",
    **{
        f"{section}.{name}": f"parallelism.{name}"
        for section in ("training", "experimental")
        for name in (
            "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
            "disable_loss_parallel", "pipeline_parallel_degree", "pipeline_parallel_schedule",
            "pipeline_parallel_schedule_csv", "context_parallel_degree", "context_parallel_rotate_method",
            "fsdp_reshard_after_forward",
        )
    },
}  # fmt: skip
"""Keys of torchtitan before 0.2 by the names that they have today."""


_LLAMA = {
    "debugmodel": {"layers": 6, "hidden": 256, "heads": 16, "kv_heads": 16, "ffn": 768, "vocab": 2048},
    "8B": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
    "70B": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256},
    "405B": {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248, "vocab": 128256},
}
"""models/llama3/__init__.py; the width of the feed-forward as models/llama3/model/model.py rounds it."""
_BUCKET_CAP_MB = 100
"""Of the buckets of DDP (models/llama3/infra/parallelize.py, apply_ddp)."""


_MOST_CHARACTERS = 32 * 1024
"""torchtitan's own files have 2 to 4 KiB. For a key of many parts tomllib takes the square of their number."""


def read(path: Path) -> Recipe:
    """The job of a file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    source = str(path)
    text = file_text(path, source)
    if len(text) > _MOST_CHARACTERS:
        raise SpecError(
            f"the file has {len(text)} characters",
            allowed=f"a config of torchtitan, of up to {_MOST_CHARACTERS}",
            remedy="take out what torchtitan does not read",
            place=source,
        )
    try:
        document = node_from_data(tomllib.loads(text), source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(
            f"no TOML: {error}", allowed="a TOML file, as torchtitan's train_configs", place=source
        ) from None
    written = drafts.rename(leaves(document.mapping()), RENAMED)
    drafts.check_all(KEYS, written, PROGRAM)
    fused = written.pop("optimizer.fused", None)
    if fused is not None and "optimizer.implementation" not in written:
        kind = "fused" if fused.value else "foreach"
        written["optimizer.implementation"] = node_from_data(kind, fused.place, "optimizer.implementation")
    ignored = tuple(drafts.list_ignored(KEYS, written))
    return _Reading(written, Recipe(source=source, folder=path.parent, ignored=ignored)).recipe()


class _Reading:
    """What the keys of one file come to."""

    def __init__(self, written: Mapping[str, Node], recipe: Recipe) -> None:
        self._written, self._recipe = written, recipe

    def recipe(self) -> Recipe:
        """What all of them come to; a model that is none of these is left to other sources."""
        if self._value("model.name") == "llama3":
            self._recipe.decoder = _LLAMA.get(self._value("model.flavor"))
        self._training()
        self._optimizer()
        self._recompute()
        self._parallelism()
        self._sharding()
        if self._value("validation.enable"):
            if self._value("validation.seq_len") != self._value("training.seq_len"):
                raise self._fault("validation.seq_len", f"{self._value('training.seq_len')}, as training.seq_len")
            batch, every = self._value("validation.local_batch_size"), self._value("validation.freq")
            self._say("validation.enable", "train.eval", {"micro_batch_size": batch, "every": every})
        return self._recipe

    def _value(self, name: str) -> Any:
        return drafts.value_of(KEYS, self._written, name)

    def _say(self, name: str, path: str, value: Any = None) -> None:
        """A value of the file, or torchtitan's default, which other sources may replace, for a key of the spec."""
        value = self._value(name) if value is None else value
        if name in self._written:
            self._recipe.say(path, value, f"{self._recipe.source}: {name}")
        else:
            self._recipe.suppose(path, value)

    def _fault(self, name: str, allowed: str, remedy: str = "write one of these") -> SpecError:
        place = f"{self._recipe.source}: {name}"
        return SpecError(f"{name} is {self._value(name)!r}", allowed=allowed, remedy=remedy, place=place)

    def _training(self) -> None:
        pipelined = self._value("parallelism.pipeline_parallel_degree") > 1
        local = self._value("training.local_batch_size")
        if pipelined:
            part = self._value("parallelism.pipeline_parallel_microbatch_size")
            if part < 1 or local % part:
                raise self._fault("parallelism.pipeline_parallel_microbatch_size", "a divisor of local_batch_size")
            self._say("parallelism.pipeline_parallel_microbatch_size", "train.micro_batch_size")
            self._say("training.local_batch_size", "train.gradient_accumulation_steps", local // part)
            if self._value("training.global_batch_size") > 0:
                raise self._fault(
                    "training.global_batch_size", "-1 in a pipeline", "accumulation around a pipeline is not planned"
                )
        else:
            self._say("training.local_batch_size", "train.micro_batch_size")
            self._recipe.samples_of_a_step = max(0, self._value("training.global_batch_size"))
        self._say("training.seq_len", "train.sequence_length")
        self._say("training.max_norm", "train.gradient_clipping", float(self._value("training.max_norm")))
        self._say("training.dtype", "model.parameter_dtype")
        if self._value("compile.enable") and "model" in (self._value("compile.components") or ["model"]):
            self._say("compile.enable", "train.compile", True)

    def _optimizer(self) -> None:
        implementation = self._value("optimizer.implementation")
        if implementation not in ("fused", "foreach", "for-loop"):
            raise self._fault("optimizer.implementation", "fused, foreach, for-loop")
        flags = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
        beta1, beta2 = self._value("optimizer.beta1"), self._value("optimizer.beta2")
        numbers = {name: self._value(f"optimizer.{name}") for name in ("lr", "eps", "weight_decay")}
        optimizer = {"name": self._value("optimizer.name"), **numbers, "betas": [beta1, beta2], **flags}
        self._say("optimizer.name", "train.optimizer", optimizer)
        if self._value("optimizer.early_step_in_backward"):
            self._say("optimizer.early_step_in_backward", "train.optimizer_in_backward", True)

    def _recompute(self) -> None:
        name = "activation_checkpoint.mode"
        mode, option = self._value(name), self._value("activation_checkpoint.selective_ac_option")
        if mode == "selective" and option.isdecimal() and 0 < len(option) < 6:
            self._say(name, "train.recompute", {"every": int(option)} if int(option) > 1 else "full")
        elif mode == "selective" and option != "op":
            raise self._fault("activation_checkpoint.selective_ac_option", "op, or a number")
        elif mode in ("none", "full", "selective"):
            self._say(name, "train.recompute")
        else:
            raise self._fault(name, "none, full, selective", "memory budgets are not planned here")

    def _parallelism(self) -> None:
        self._say("parallelism.data_parallel_replicate_degree", "parallel.dp_replicate.degree")
        tp = self._value("parallelism.tensor_parallel_degree")
        self._say("parallelism.tensor_parallel_degree", "parallel.tp.degree")
        if tp > 1:
            self._say("parallelism.tensor_parallel_degree", "parallel.tp.sequence_parallel", True)
            loss = not self._value("parallelism.disable_loss_parallel")
            self._say("parallelism.disable_loss_parallel", "parallel.tp.loss_parallel", loss)
        self._say("parallelism.pipeline_parallel_degree", "parallel.pp.degree")
        if self._value("parallelism.pipeline_parallel_degree") > 1:
            self._say("parallelism.pipeline_parallel_schedule", "parallel.pp.schedule")
        self._say("parallelism.context_parallel_degree", "parallel.cp.degree")
        if self._value("parallelism.context_parallel_degree") > 1:
            self._say("parallelism.context_parallel_rotate_method", "parallel.cp.rotate")

    def _sharding(self) -> None:
        """Every layer, the embedding, the last norm with the output; the latter keeps its parameters by default."""
        degree = self._value("parallelism.data_parallel_shard_degree")
        sharded = degree != 1 or self._value("parallelism.context_parallel_degree") > 1
        split = max(self._value(f"parallelism.{name}_parallel_degree") for name in ("tensor", "pipeline")) > 1
        low = self._value("training.mixed_precision_param") == "bfloat16"
        precision = "fsdp_mixed" if sharded else "none" if split else "bf16_autocast"
        self._say("training.mixed_precision_param", "train.precision", precision if low else "none")
        if degree == -1:
            self._recipe.shards = True
        else:
            self._say("parallelism.data_parallel_shard_degree", f"{_SHARD}.degree")
        if not sharded:
            self._recipe.suppose("parallel.dp_replicate.bucket_cap_mb", float(_BUCKET_CAP_MB))
            return
        policy, name = self._value("parallelism.fsdp_reshard_after_forward"), "parallelism.fsdp_reshard_after_forward"
        if policy not in ("default", "always", "never"):
            raise self._fault(name, "default, always, never")
        pipelined = self._value("parallelism.pipeline_parallel_degree") > 1
        self._say(
            name, f"{_SHARD}.reshard_after_forward", policy == "always" or (policy == "default" and not pipelined)
        )
        self._say(name, f"{_SHARD}.keep_last", policy != "always")
        if not pipelined:
            self._recipe.groups = ("embedding", "norm head")
        if self._value("training.enable_cpu_offload"):
            self._say("training.enable_cpu_offload", f"{_SHARD}.offload", "cpu")

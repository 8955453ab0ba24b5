"""Reads torchtitan's TOML: its Trainer as planner plans it, Llama 3 by the built-in decoder.

What its keys do is in torchtitan 0.2.2 (train.py, models/llama3/infra/parallelize.py, distributed/utils.py,
distributed/activation_checkpoint.py). `make beside-plans` sets such specs beside torchtitan's own Trainer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.errors import SpecError
from planner.job.importers.fine_tuning import Recipe
from planner.job.importers.key_tables import WrittenKeys, table
from planner.job.json_text import file_text
from planner.job.nodes import Node, node_from_data

_SHARD = "parallel.dp_shard"
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
    written = table("torchtitan").read(_leaves(document.mapping()), source=source)
    fused = written.nodes.pop("optimizer.fused", None)
    if fused is not None and "optimizer.implementation" not in written:
        kind = "fused" if fused.value else "foreach"
        written.nodes["optimizer.implementation"] = node_from_data(kind, source)
    for name, node in written.nodes.items():
        written.nodes[name] = replace(node, place=f"{source}: {name}")
    recipe = Recipe(source=source, folder=path.parent, ignored=written.ignored)
    if written["model.name"] == "llama3":  # a model that is none of these is left to other sources
        recipe.decoder = _LLAMA.get(written["model.flavor"])
    for tell in (_training, _optimizer, _recompute, _parallelism, _sharding, _validation):
        tell(written, recipe)
    return recipe


def _leaves(written: Mapping[str, Node], prefix: str = "") -> dict[str, Node]:
    """The values of nested tables by their dotted names."""
    values: dict[str, Node] = {}
    for name, node in written.items():
        values |= _leaves(node.value, f"{prefix}{name}.") if isinstance(node.value, dict) else {f"{prefix}{name}": node}
    return values


def _fault(written: WrittenKeys, name: str, allowed: str, remedy: str = "write one of these") -> SpecError:
    place = f"{written.source}: {name}"
    return SpecError(f"{name} is {written[name]!r}", allowed=allowed, remedy=remedy, place=place)


def _validation(written: WrittenKeys, recipe: Recipe) -> None:
    if written["validation.enable"]:
        if written["validation.seq_len"] != written["training.seq_len"]:
            raise _fault(written, "validation.seq_len", f"{written['training.seq_len']}, as training.seq_len")
        batch, every = written["validation.local_batch_size"], written["validation.freq"]
        written.tell(recipe.draft, "validation.enable", "train.eval", {"micro_batch_size": batch, "every": every})


def _training(written: WrittenKeys, recipe: Recipe) -> None:
    pipelined = written["parallelism.pipeline_parallel_degree"] > 1
    local = written["training.local_batch_size"]
    if pipelined:
        part = written["parallelism.pipeline_parallel_microbatch_size"]
        if part < 1 or local % part:
            raise _fault(written, "parallelism.pipeline_parallel_microbatch_size", "a divisor of local_batch_size")
        written.tell(recipe.draft, "parallelism.pipeline_parallel_microbatch_size", "train.micro_batch_size")
        written.tell(recipe.draft, "training.local_batch_size", "train.gradient_accumulation_steps", local // part)
        if written["training.global_batch_size"] > 0:
            raise _fault(
                written,
                "training.global_batch_size",
                "-1 in a pipeline",
                "accumulation around a pipeline is not planned",
            )
    else:
        written.tell(recipe.draft, "training.local_batch_size", "train.micro_batch_size")
        recipe.samples_of_a_step = max(0, written["training.global_batch_size"])
    written.tell(recipe.draft, "training.seq_len", "train.sequence_length")
    written.tell(recipe.draft, "training.max_norm", "train.gradient_clipping", float(written["training.max_norm"]))
    written.tell(recipe.draft, "training.dtype", "model.parameter_dtype")
    if written["compile.enable"] and "model" in (written["compile.components"] or ["model"]):
        written.tell(recipe.draft, "compile.enable", "train.compile", True)


def _optimizer(written: WrittenKeys, recipe: Recipe) -> None:
    implementation = written["optimizer.implementation"]
    if implementation not in ("fused", "foreach", "for-loop"):
        raise _fault(written, "optimizer.implementation", "fused, foreach, for-loop")
    flags = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    beta1, beta2 = written["optimizer.beta1"], written["optimizer.beta2"]
    numbers = {name: written[f"optimizer.{name}"] for name in ("lr", "eps", "weight_decay")}
    optimizer = {"name": written["optimizer.name"], **numbers, "betas": [beta1, beta2], **flags}
    written.tell(recipe.draft, "optimizer.name", "train.optimizer", optimizer)
    if written["optimizer.early_step_in_backward"]:
        written.tell(recipe.draft, "optimizer.early_step_in_backward", "train.optimizer_in_backward", True)


def _recompute(written: WrittenKeys, recipe: Recipe) -> None:
    name = "activation_checkpoint.mode"
    mode, option = written[name], written["activation_checkpoint.selective_ac_option"]
    if mode == "selective" and option.isdecimal() and 0 < len(option) < 6:
        written.tell(recipe.draft, name, "train.recompute", {"every": int(option)} if int(option) > 1 else "full")
    elif mode == "selective" and option != "op":
        raise _fault(written, "activation_checkpoint.selective_ac_option", "op, or a number")
    elif mode in ("none", "full", "selective"):
        written.tell(recipe.draft, name, "train.recompute")
    else:
        raise _fault(written, name, "none, full, selective", "memory budgets are not planned here")


def _parallelism(written: WrittenKeys, recipe: Recipe) -> None:
    written.tell(recipe.draft, "parallelism.data_parallel_replicate_degree", "parallel.dp_replicate.degree")
    tp = written["parallelism.tensor_parallel_degree"]
    written.tell(recipe.draft, "parallelism.tensor_parallel_degree", "parallel.tp.degree")
    if tp > 1:
        written.tell(recipe.draft, "parallelism.tensor_parallel_degree", "parallel.tp.sequence_parallel", True)
        loss = not written["parallelism.disable_loss_parallel"]
        written.tell(recipe.draft, "parallelism.disable_loss_parallel", "parallel.tp.loss_parallel", loss)
    written.tell(recipe.draft, "parallelism.pipeline_parallel_degree", "parallel.pp.degree")
    if written["parallelism.pipeline_parallel_degree"] > 1:
        written.tell(recipe.draft, "parallelism.pipeline_parallel_schedule", "parallel.pp.schedule")
    written.tell(recipe.draft, "parallelism.context_parallel_degree", "parallel.cp.degree")
    if written["parallelism.context_parallel_degree"] > 1:
        written.tell(recipe.draft, "parallelism.context_parallel_rotate_method", "parallel.cp.rotate")


def _sharding(written: WrittenKeys, recipe: Recipe) -> None:
    """Every layer, the embedding, the last norm with the output; the latter keeps its parameters by default."""
    degree = written["parallelism.data_parallel_shard_degree"]
    sharded = degree != 1 or written["parallelism.context_parallel_degree"] > 1
    split = max(written[f"parallelism.{name}_parallel_degree"] for name in ("tensor", "pipeline")) > 1
    low = written["training.mixed_precision_param"] == "bfloat16"
    precision = "fsdp_mixed" if sharded else "none" if split else "bf16_autocast"
    written.tell(recipe.draft, "training.mixed_precision_param", "train.precision", precision if low else "none")
    if degree == -1:
        recipe.shards = True
    else:
        written.tell(recipe.draft, "parallelism.data_parallel_shard_degree", f"{_SHARD}.degree")
    if not sharded:
        recipe.draft.suppose("parallel.dp_replicate.bucket_cap_mb", float(_BUCKET_CAP_MB), recipe.source)
        return
    policy, name = written["parallelism.fsdp_reshard_after_forward"], "parallelism.fsdp_reshard_after_forward"
    if policy not in ("default", "always", "never"):
        raise _fault(written, name, "default, always, never")
    pipelined = written["parallelism.pipeline_parallel_degree"] > 1
    written.tell(
        recipe.draft,
        name,
        f"{_SHARD}.reshard_after_forward",
        policy == "always" or (policy == "default" and not pipelined),
    )
    written.tell(recipe.draft, name, f"{_SHARD}.keep_last", policy != "always")
    if not pipelined:
        recipe.groups = ("embedding", "norm head")
    if written["training.enable_cpu_offload"]:
        written.tell(recipe.draft, "training.enable_cpu_offload", f"{_SHARD}.offload", "cpu")

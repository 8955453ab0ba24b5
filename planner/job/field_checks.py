"""What each value of a job spec may be, as a table: one entry per field that holds a number or a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from planner.job import schema
from planner.job import schema as post_training
from planner.job.schema import Lengths
from planner.job.size_limits import MOST_GPU_BYTES, MOST_HOST_BYTES
from planner.units import MIB

_MOST = 2**40
"""No count of a job is larger; torch's own integers end at 2**63."""
_LONGEST_TEXT = 1000
_LONGEST_VERSION = 60
_MOST_STEPS = 100_000
"""Of a run that is replayed."""


@dataclass(frozen=True, slots=True)
class Check:
    """What a value may be: in words for messages, as a function, and by name where there are names."""

    allowed: str
    accepts: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    size: bool = False
    """Written as bytes with a unit (`79.1GiB`), held as whole bytes."""
    unit: str = ""
    """Of a number; a size's is bytes."""
    tokens: bool = False
    """May be written as `4k`."""
    least: int | None = None
    """Of a whole number."""


def _anything(_: Any) -> bool:
    return True


def _whole(least: int, unit: str = "") -> Check:
    return Check(f"a whole number from {least}", lambda value: least <= value <= _MOST, unit=unit, least=least)


def _tokens(least: int = 0) -> Check:
    count = _whole(least, "tokens")
    return replace(count, allowed=f"{count.allowed}, or such as 4k", tokens=True)


def _one_of(*names: str) -> Check:
    return Check(", ".join(name or '""' for name in names), lambda value: value in names, names=names)


def _like(pattern: str, allowed: str, longest: int = _LONGEST_TEXT) -> Check:
    """Never matches a longer text: some patterns take time that grows faster than it."""
    return Check(allowed, lambda value: len(value) <= longest and re.fullmatch(pattern, value) is not None)


def _size(least: int, allowed: str) -> Check:
    return Check(allowed, lambda value: least <= value <= MOST_GPU_BYTES, size=True, unit="bytes")


HOST_SIZE = Check(
    "a size from 0 to 1024TiB, such as 480GiB", lambda value: 0 <= value <= MOST_HOST_BYTES, size=True, unit="bytes"
)
COUNT = _whole(1)
SAMPLES, RANKS, BLOCKS = _whole(1, "samples"), _whole(1, "ranks"), _whole(0, "blocks")
TRUTH = Check("true or false", _anything)
TEXT = Check(f"text of up to {_LONGEST_TEXT} characters", lambda value: len(value) <= _LONGEST_TEXT)
PATH = Check("a path", lambda value: len(value) <= 4000 and "\0" not in value)
FLOATING = _one_of("float64", "float32", "bfloat16", "float16")
SIXTEEN_OR_MORE = _one_of("bfloat16", "float16", "float32")
POSITIVE = Check("a number larger than 0", lambda value: 0 < value <= _MOST)
NOT_NEGATIVE = Check("a number from 0", lambda value: 0 <= value <= _MOST)
ANYTHING = Check("text, numbers, true, false, null, lists and mappings", _anything)

CHECKS: dict[tuple[type, str], Check] = {
    (schema.Metadata, "name"): TEXT,
    (schema.Metadata, "team"): TEXT,
    (schema.Metadata, "queue"): TEXT,
    (schema.Decoder, "layers"): COUNT,
    (schema.Decoder, "hidden"): COUNT,
    (schema.Decoder, "heads"): COUNT,
    (schema.Decoder, "kv_heads"): COUNT,
    (schema.Decoder, "ffn"): COUNT,
    (schema.Decoder, "vocab"): COUNT,
    (schema.Decoder, "tie_embeddings"): TRUTH,
    (schema.Decoder, "head_dim"): _whole(0),
    (schema.Decoder, "qk_norm"): TRUTH,
    (schema.Model, "hf_config"): Check(
        "the name of a well-known model, the path of a config.json, or its content", _anything
    ),
    (schema.Model, "factory"): _like(r"|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", "`module:callable`"),
    (schema.Model, "factory_arguments"): ANYTHING,
    (schema.Model, "factory_path"): PATH,
    (schema.Model, "head"): _like(r"[a-z0-9_]*", "a name such as causal_lm"),
    (schema.Model, "blocks"): TEXT,
    (schema.Model, "parameter_dtype"): replace(
        _one_of("", *FLOATING.names, schema.AS_BUILT), allowed=f"{FLOATING.allowed}; {schema.AS_BUILT} for a factory"
    ),
    (schema.Model, "attention"): _one_of("sdpa", "eager"),
    (schema.Model, "use_cache"): TRUTH,
    (schema.Adapter, "kind"): _one_of("lora", "dora", "qlora"),
    (schema.Adapter, "r"): COUNT,
    (schema.Adapter, "alpha"): COUNT,
    (schema.Adapter, "dropout"): Check("a number from 0 to 1", lambda value: 0 <= value <= 1),
    (schema.Adapter, "target_modules"): _like(r"[\w.]+", "names of modules (q_proj)"),
    (schema.Adapter, "load"): _one_of("layers", "whole"),
    (schema.Input, "shape"): COUNT,
    (schema.Input, "dtype"): _one_of(*FLOATING.names, "int64", "int32", "int16", "int8", "uint8", "bool"),
    (schema.Input, "maximum"): COUNT,
    (schema.Loss, "name"): _one_of("cross_entropy", "mse", "sum", "model"),
    (schema.Loss, "dtype"): FLOATING,
    (schema.Loss, "chunks"): COUNT,
    (schema.Loss, "chunk_head"): TRUTH,
    (schema.Loss, "keep_output"): TRUTH,
    (schema.Optimizer, "name"): _like(
        r"(?!(?:adam|sgd|adagrad|rmsprop|muon|fused_)[^A-Z.]*$)[^\W\d]\w*(\.\w+)?",
        "the name of a class of torch.optim, or such as bitsandbytes.AdamW8bit",
    ),
    (schema.Optimizer, "arguments"): ANYTHING,
    (schema.Recompute, "mode"): replace(
        _one_of("none", "full", "selective", "every"), allowed="none, full, selective or {every: 2}"
    ),
    (schema.Recompute, "every"): COUNT,
    (schema.CheckpointLoad, "map_location"): _one_of("cpu", "device"),
    (schema.CheckpointLoad, "keep_reference"): TRUTH,
    (schema.CheckpointLoad, "mmap"): TRUTH,
    (schema.DataLoader, "workers"): Check(
        "a whole number from 0 to 4096", lambda value: 0 <= value <= 4096, unit="processes", least=0
    ),
    (schema.DataLoader, "prefetch_factor"): Check(
        "a whole number from 1 to 4096", lambda value: 1 <= value <= 4096, unit="batches", least=1
    ),
    (schema.DataLoader, "pin_memory"): TRUTH,
    (schema.DataLoader, "worker_bytes"): HOST_SIZE,
    (schema.DataLoader, "dataset_bytes"): HOST_SIZE,
    (schema.CheckpointLoad, "kind"): _one_of("state_dict", "full_state_dict", "dcp"),
    (schema.CheckpointLoad, "broadcast_from_rank0"): TRUTH,
    (schema.CheckpointLoad, "optimizer"): TRUTH,
    (schema.CheckpointSave, "kind"): _one_of(
        "full_state_dict", "sharded_state_dict", "dcp", "dcp_async", "huggingface"
    ),
    (schema.CheckpointSave, "cpu_offload"): TRUTH,
    (schema.CheckpointSave, "optimizer"): TRUTH,
    (schema.CheckpointSave, "every"): _whole(1, "iterations"),
    (schema.CheckpointSave, "pinned"): TRUTH,
    (schema.Eval, "micro_batch_size"): SAMPLES,
    (schema.Eval, "every"): _whole(1, "iterations"),
    (schema.Eval, "batches"): _whole(1, "evaluation steps"),
    (schema.Eval, "gather"): _one_of("", "loss", "logits"),
    (schema.Eval, "accumulation_steps"): _whole(0, "evaluation steps"),
    (schema.Generate, "max_new_tokens"): _tokens(1),
    (schema.Generate, "batch"): _whole(1, "prompts"),
    (schema.Generate, "prompt_tokens"): _tokens(),
    (schema.Generate, "use_cache"): TRUTH,
    (schema.Compile, "scope"): _one_of("model", "blocks", "loss", "optimizer"),
    (schema.Compile, "mode"): _one_of("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    (schema.Compile, "fullgraph"): TRUTH,
    (schema.Compile, "autograd"): TRUTH,
    (schema.Compile, "planned_as"): _one_of("compiled", "eager"),
    (schema.Compile, "dynamic"): Check("true, false or null", _anything),
    (schema.Compile, "backend"): _one_of("inductor", "aot_eager", "eager"),
    (schema.Train, "micro_batch_size"): SAMPLES,
    (schema.Train, "sequence_length"): _tokens(),
    **{(Lengths, name): _tokens() for name in ("p50", "p90", "p95", "p99")},
    (Lengths, "min"): _tokens(1),
    (Lengths, "histogram"): Check("lengths and their shares, {512: 0.7, 8192: 0.3}", _anything),
    (Lengths, "batches"): _tokens(1),
    (Lengths, "pad_to_multiple_of"): _whole(1, "tokens"),
    (Lengths, "steps"): Check(
        f"a whole number from 1 to {_MOST_STEPS}", lambda value: 1 <= value <= _MOST_STEPS, unit="steps", least=1
    ),
    (Lengths, "seed"): _whole(0),
    (schema.Train, "padding"): _one_of("none", "right"),
    (schema.Train, "gradient_accumulation_steps"): _whole(1, "micro-batches"),
    (schema.Train, "precision"): _one_of("none", "bf16_autocast", "fp16_autocast", "fsdp_mixed"),
    (schema.Train, "gradient_clipping"): NOT_NEGATIVE,
    (schema.Train, "zero_grad_set_to_none"): TRUTH,
    (schema.Train, "iterations"): _whole(1, "iterations"),
    (schema.Train, "optimizer_in_backward"): TRUTH,
    (schema.Train, "empty_cache_every"): _whole(0, "iterations"),
    (schema.Train, "activation_offload"): TRUTH,
    (schema.Train, "retains"): _one_of("", "loss", "output"),
    (post_training.Rollout, "engine"): _one_of("vllm", "sglang"),
    (post_training.Rollout, "placement"): _one_of("same_process", "own_process"),
    (post_training.Rollout, "tensor_parallel"): RANKS,
    (post_training.Rollout, "gpu_memory_utilization"): Check(
        "a number from 0 to 1; 0: the largest that is safe", lambda value: 0 <= value <= 1
    ),
    (post_training.Rollout, "max_model_len"): replace(_tokens(), least=1, accepts=lambda value: 1 <= value <= _MOST),
    (post_training.Rollout, "max_num_seqs"): _whole(1, "sequences"),
    (post_training.Rollout, "max_num_batched_tokens"): _whole(1, "tokens"),
    (post_training.Rollout, "dtype"): SIXTEEN_OR_MORE,
    (post_training.Rollout, "kv_cache_dtype"): _one_of("auto", "fp8", *SIXTEEN_OR_MORE.names),
    (post_training.Rollout, "block_size"): _whole(1, "tokens"),
    (post_training.Rollout, "enforce_eager"): TRUTH,
    (post_training.Rollout, "sleep_level"): Check("0, 1 or 2", lambda value: value in (0, 1, 2), least=0),
    (post_training.WeightSync, "bucket_bytes"): _size(0, "a size from 0 to 4TiB, such as 512MiB"),
    (post_training.WeightSync, "while_awake"): _one_of("weights", "kv_cache"),
    (post_training.TrainerOffload, "parameters"): TRUTH,
    (post_training.TrainerOffload, "optimizer"): TRUTH,
    (post_training.FrozenModel, "config"): Check(
        "the name of a well-known model, the path of a config.json, or its content", _anything
    ),
    (post_training.FrozenModel, "head"): _like(r"[a-z0-9_]*", "a name such as sequence_classification"),
    (post_training.FrozenModel, "dtype"): SIXTEEN_OR_MORE,
    (post_training.FrozenModel, "offload"): TRUTH,
    (post_training.FrozenModel, "micro_batch_size"): SAMPLES,
    (post_training.PostTraining, "empty_cache"): TRUTH,
    (schema.DpReplicate, "degree"): RANKS,
    (schema.DpReplicate, "kind"): _one_of("ddp"),
    (schema.DpReplicate, "bucket_cap_mb"): replace(POSITIVE, unit="MiB"),
    (schema.DpReplicate, "gradient_as_bucket_view"): TRUTH,
    (schema.DpReplicate, "find_unused_parameters"): TRUTH,
    (schema.DpReplicate, "static_graph"): TRUTH,
    (schema.DpReplicate, "broadcast_buffers"): TRUTH,
    (schema.DpReplicate, "init_sync"): TRUTH,
    (schema.DpReplicate, "comm_hook"): _one_of("", "fp16_compress", "bf16_compress", "power_sgd"),
    (schema.DpReplicate, "no_sync"): TRUTH,
    (schema.DpReplicate, "zero_redundancy_optimizer"): TRUTH,
    (schema.DpShard, "degree"): RANKS,
    (schema.DpShard, "reshard_after_forward"): Check(
        "true, false or a whole number from 1", lambda value: isinstance(value, bool) or 1 <= value <= _MOST
    ),
    (schema.DpShard, "keep_last"): TRUTH,
    (schema.DpShard, "groups"): _like(r"[\w.]+( [\w.]+)*", 'paths of modules with spaces between them ("norm head")'),
    (schema.DpShard, "kind"): replace(_one_of("fsdp2", "fsdp1"), allowed="fsdp2", names=("fsdp2",)),
    (schema.DpShard, "reduce_dtype"): _one_of("float32", "bfloat16"),
    (schema.DpShard, "offload"): _one_of("", "cpu"),
    (schema.DpShard, "no_sync"): TRUTH,
    (schema.DpShard, "prefetch"): BLOCKS,
    (schema.Tp, "degree"): RANKS,
    (schema.Tp, "sequence_parallel"): TRUTH,
    (schema.Tp, "loss_parallel"): TRUTH,
    (schema.Tp, "plan"): ANYTHING,
    (schema.Pp, "degree"): RANKS,
    (schema.Pp, "schedule"): _like(r"\w+", "the name of a schedule of torch.distributed.pipelining"),
    (schema.Pp, "split"): _whole(1, "layers"),
    (schema.Cp, "degree"): RANKS,
    (schema.Cp, "rotate"): _one_of("allgather", "alltoall"),
    (schema.Ep, "degree"): RANKS,
    (schema.Ep, "imbalance"): Check("a number from 1", lambda value: 1 <= value <= _MOST),
    (schema.Parallel, "deepspeed"): Check("the path of a ds_config.json, or its content as a mapping", _anything),
    (schema.Gpu, "name"): TEXT,
    (schema.Gpu, "total_bytes"): _size(MIB, "a size from 1MiB to 4TiB, such as 79.1GiB"),
    (schema.Gpu, "arch"): _like(r"sm_[1-9][0-9]{1,2}[a-z]?|gfx[0-9a-f]{3,4}", "such as sm_90 or gfx942"),
    (schema.Cluster, "nodes"): COUNT,
    (schema.Cluster, "gpus_per_node"): COUNT,
    (schema.Cluster, "held_by_others_bytes"): _size(0, "a size from 0 to 4TiB, such as 2GiB"),
    (schema.Cluster, "host_memory"): HOST_SIZE,
    (schema.Software, "torch"): _like(r"[0-9]+\.[0-9]+\S*", "a version such as 2.13", _LONGEST_VERSION),
    (schema.Software, "cuda"): _like(r"[0-9]+\.[0-9]+\S*", "a version such as 13.0", _LONGEST_VERSION),
    (schema.Software, "step"): _one_of("torch", "megatron"),
    (schema.Allocator, "conf"): TEXT,
}

"""What each value of a job spec may be, as a table: one entry per field that holds a number or a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from planner.spec import job
from planner.units import MIB

_MOST = 2**40
"""No count of a job is larger; torch's own integers end at 2**63."""


@dataclass(frozen=True, slots=True)
class Check:
    """What a value may be: in words for messages, as a function, and by name where there are names."""

    allowed: str
    accepts: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    size: bool = False
    """Written as bytes with a unit (`79.1GiB`), held as whole bytes."""


def _anything(_: Any) -> bool:
    return True


def _whole(least: int) -> Check:
    return Check(f"a whole number from {least}", lambda value: least <= value <= _MOST)


def _one_of(*names: str) -> Check:
    return Check(", ".join(name or '""' for name in names), lambda value: value in names, names=names)


def _like(pattern: str, allowed: str) -> Check:
    return Check(allowed, lambda value: re.fullmatch(pattern, value) is not None)


def _size(least: int, allowed: str) -> Check:
    return Check(allowed, lambda value: least <= value <= 2**53, size=True)


COUNT = _whole(1)
COUNT_OR_NONE = _whole(0)
TRUTH = Check("true or false", _anything)
TEXT = Check("text of up to 1000 characters", lambda value: len(value) <= 1000)
PATH = Check("a path", lambda value: len(value) <= 4000 and "\0" not in value)
FLOATING = _one_of("float64", "float32", "bfloat16", "float16")
POSITIVE = Check("a number larger than 0", lambda value: 0 < value <= _MOST)
NOT_NEGATIVE = Check("a number from 0", lambda value: 0 <= value <= _MOST)
ANYTHING = Check("text, numbers, true, false, null, lists and mappings", _anything)

CHECKS: dict[tuple[type, str], Check] = {
    (job.Metadata, "name"): TEXT,
    (job.Metadata, "team"): TEXT,
    (job.Metadata, "queue"): TEXT,
    (job.Decoder, "layers"): COUNT,
    (job.Decoder, "hidden"): COUNT,
    (job.Decoder, "heads"): COUNT,
    (job.Decoder, "kv_heads"): COUNT,
    (job.Decoder, "ffn"): COUNT,
    (job.Decoder, "vocab"): COUNT,
    (job.Decoder, "tie_embeddings"): TRUTH,
    (job.Model, "hf_config"): Check("the path of a config.json, or its content as a mapping", _anything),
    (job.Model, "factory"): _like(r"|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", "`module:callable`"),
    (job.Model, "factory_arguments"): ANYTHING,
    (job.Model, "factory_path"): PATH,
    (job.Model, "head"): _like(r"[a-z0-9_]*", "a name such as causal_lm"),
    (job.Model, "blocks"): TEXT,
    (job.Model, "parameter_dtype"): FLOATING,
    (job.Model, "attention"): _one_of("sdpa", "eager"),
    (job.Adapter, "kind"): _one_of("lora", "dora", "qlora"),
    (job.Adapter, "r"): COUNT,
    (job.Adapter, "alpha"): COUNT,
    (job.Adapter, "dropout"): Check("a number from 0 to 1", lambda value: 0 <= value <= 1),
    (job.Adapter, "target_modules"): _like(r"[\w.]+", "names of modules (q_proj)"),
    (job.Input, "shape"): COUNT,
    (job.Input, "dtype"): _one_of(*FLOATING.names, "int64", "int32", "int16", "int8", "uint8", "bool"),
    (job.Input, "maximum"): COUNT,
    (job.Loss, "name"): _one_of("cross_entropy", "mse", "sum", "model"),
    (job.Loss, "dtype"): FLOATING,
    (job.Loss, "chunks"): COUNT,
    (job.Loss, "keep_output"): TRUTH,
    (job.Optimizer, "name"): _like(
        r"[^\W\d]\w*(\.\w+)?", "the name of a class of torch.optim, or such as bitsandbytes.AdamW8bit"
    ),
    (job.Optimizer, "arguments"): ANYTHING,
    (job.Recompute, "mode"): replace(
        _one_of("none", "full", "selective", "every"), allowed="none, full, selective or {every: 2}"
    ),
    (job.Recompute, "every"): COUNT,
    (job.CheckpointLoad, "map_location"): _one_of("cpu", "device"),
    (job.CheckpointLoad, "keep_reference"): TRUTH,
    (job.Eval, "micro_batch_size"): COUNT,
    (job.Eval, "every"): COUNT,
    (job.Train, "micro_batch_size"): COUNT,
    (job.Train, "sequence_length"): COUNT_OR_NONE,
    (job.Train, "gradient_accumulation_steps"): COUNT,
    (job.Train, "precision"): _one_of("none", "bf16_autocast", "fp16_autocast", "fsdp_mixed"),
    (job.Train, "gradient_clipping"): NOT_NEGATIVE,
    (job.Train, "zero_grad_set_to_none"): TRUTH,
    (job.Train, "iterations"): COUNT,
    (job.Train, "optimizer_in_backward"): TRUTH,
    (job.Train, "activation_offload"): TRUTH,
    (job.Train, "compile"): TRUTH,
    (job.DpReplicate, "degree"): COUNT,
    (job.DpReplicate, "kind"): _one_of("ddp"),
    (job.DpReplicate, "bucket_cap_mb"): POSITIVE,
    (job.DpReplicate, "gradient_as_bucket_view"): TRUTH,
    (job.DpReplicate, "find_unused_parameters"): TRUTH,
    (job.DpReplicate, "static_graph"): TRUTH,
    (job.DpReplicate, "broadcast_buffers"): TRUTH,
    (job.DpReplicate, "init_sync"): TRUTH,
    (job.DpReplicate, "comm_hook"): _one_of("", "fp16_compress", "bf16_compress", "power_sgd"),
    (job.DpReplicate, "no_sync"): TRUTH,
    (job.DpReplicate, "zero_redundancy_optimizer"): TRUTH,
    (job.DpShard, "degree"): COUNT,
    (job.DpShard, "reshard_after_forward"): Check(
        "true, false or a whole number from 1", lambda value: isinstance(value, bool) or 1 <= value <= _MOST
    ),
    (job.DpShard, "keep_last"): TRUTH,
    (job.DpShard, "groups"): _like(r"[\w.]+( [\w.]+)*", 'paths of modules with spaces between them ("norm head")'),
    (job.DpShard, "kind"): replace(_one_of("fsdp2", "fsdp1"), allowed="fsdp2", names=("fsdp2",)),
    (job.DpShard, "reduce_dtype"): _one_of("float32", "bfloat16"),
    (job.DpShard, "offload"): _one_of("", "cpu"),
    (job.DpShard, "no_sync"): TRUTH,
    (job.DpShard, "prefetch"): COUNT_OR_NONE,
    (job.Tp, "degree"): COUNT,
    (job.Tp, "sequence_parallel"): TRUTH,
    (job.Tp, "loss_parallel"): TRUTH,
    (job.Tp, "plan"): ANYTHING,
    (job.Pp, "degree"): COUNT,
    (job.Pp, "schedule"): _like(r"\w+", "the name of a schedule of torch.distributed.pipelining"),
    (job.Pp, "split"): COUNT,
    (job.Cp, "degree"): COUNT,
    (job.Cp, "rotate"): _one_of("allgather", "alltoall"),
    (job.Ep, "degree"): COUNT,
    (job.Ep, "imbalance"): Check("a number from 1", lambda value: 1 <= value <= _MOST),
    (job.Parallel, "deepspeed"): Check("the path of a ds_config.json, or its content as a mapping", _anything),
    (job.Gpu, "name"): TEXT,
    (job.Gpu, "total_bytes"): _size(MIB, "a size from 1MiB, such as 79.1GiB"),
    (job.Gpu, "arch"): _like(r"sm_[1-9][0-9]{1,2}[a-z]?|gfx[0-9a-f]{3,4}", "such as sm_90 or gfx942"),
    (job.Cluster, "nodes"): COUNT,
    (job.Cluster, "gpus_per_node"): COUNT,
    (job.Cluster, "held_by_others_bytes"): _size(0, "a size from 0, such as 2GiB"),
    (job.Software, "torch"): _like(r"[0-9]+\.[0-9]+\S*", "a version such as 2.13"),
    (job.Software, "cuda"): _like(r"[0-9]+\.[0-9]+\S*", "a version such as 13.0"),
    (job.Allocator, "conf"): TEXT,
}

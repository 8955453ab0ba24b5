"""Values as other programs write them, and what a spec says instead: for errors, and for the options' words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.job import schema

_EIGHT_BITS = {"name": "bitsandbytes.AdamW8bit"}
OPTIMIZERS: Mapping[str, dict[str, Any]] = {
    "adam": {"name": "Adam"},
    "adamw": {"name": "AdamW"},
    "adamw_torch": {"name": "AdamW"},
    "adamw_hf": {"name": "AdamW"},
    "adamw_torch_fused": {"name": "AdamW", "fused": True},
    "fused_adamw": {"name": "AdamW", "fused": True},
    "adamw_8bit": _EIGHT_BITS,
    "adamw8bit": _EIGHT_BITS,
    "adamw_torch_8bit": {"name": "torchao.AdamW8bit"},
    "adamw_torch_4bit": {"name": "torchao.AdamW4bit"},
    "sgd": {"name": "SGD"},
    "adagrad": {"name": "Adagrad"},
    "adafactor": {"name": "Adafactor"},
    "rmsprop": {"name": "RMSprop"},
    "muon": {"name": "Muon"},
}
"""transformers' `optim` and what people say, to `train.optimizer`; adamw_bnb_8bit is not here, since it keeps the state
of embeddings in 32 bits."""

_DTYPES = {
    **dict.fromkeys(("bf16", "torch.bfloat16"), "write bfloat16"),
    **dict.fromkeys(("fp16", "half", "torch.float16"), "write float16"),
    **dict.fromkeys(("fp32", "float", "torch.float32"), "write float32"),
}
_MIXED = "write bf16_autocast; or fsdp_mixed, where fully_shard casts (parallel.dp_shard)"
_DEGREE = {
    "-1": "write how many ranks it has; `planner plan JOB --fsdp` takes the rest of the GPUs",
    "auto": "write how many ranks it has; `planner plan JOB --fsdp` takes the rest of the GPUs",
}
_ON_HOST = {"true": "write cpu", "cpu_offload": "write cpu"}

_REMEDIES: Mapping[tuple[type, str], Mapping[str, str]] = {
    (schema.Model, "parameter_dtype"): {**_DTYPES, "auto": "write the dtype of the config: bfloat16, for most models"},
    (schema.Model, "attention"): {
        **dict.fromkeys(
            ("flash_attention_2", "flash_attention_3", "flash_attention", "flash", "flash_attn"),
            "write sdpa, which takes PyTorch's flash kernel where the GPU would",
        ),
        "flex_attention": "write sdpa; flex_attention is not planned",
    },
    (schema.Loss, "dtype"): _DTYPES,
    (schema.Loss, "name"): dict.fromkeys(("ce", "nll", "crossentropyloss", "causal_lm"), "write cross_entropy"),
    (schema.Train, "precision"): {
        **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "amp", "mixed", "16-mixed"), _MIXED),
        **dict.fromkeys(("fp16", "float16", "half", "16"), "write fp16_autocast"),
        **dict.fromkeys(("fp32", "float32", "no", "32", "32-true"), "write none"),
        "bf16-true": "write none, with model: {parameter_dtype: bfloat16}",
        "fp8": "fp8 is not planned; write bf16_autocast for an upper bound of the activations",
    },
    (schema.Optimizer, "name"): {
        "adamw_bnb_8bit": "for a lower bound write bitsandbytes.AdamW8bit: transformers keeps the state of embeddings"
        " in 32 bits",
    },
    (schema.Recompute, "mode"): {
        **dict.fromkeys(("true", "block", "blocks", "all", "uniform", "on", "yes"), "write full"),
        **dict.fromkeys(("false", "off", "no", "null"), "write none"),
        **dict.fromkeys(("sac", "op", "selective_op"), "write selective"),
    },
    (schema.CheckpointLoad, "map_location"): dict.fromkeys(("cuda", "gpu", "cuda:0"), "write device"),
    (schema.DpReplicate, "kind"): {"fsdp": "sharding is parallel: {dp_shard: N}"},
    (schema.DpShard, "kind"): dict.fromkeys(("fsdp", "2", "fully_shard"), "write fsdp2"),
    (schema.DpShard, "reshard_after_forward"): {
        **dict.fromkeys(("full_shard", "always", "zero3"), "write true"),
        **dict.fromkeys(("shard_grad_op", "never", "zero2"), "write false"),
        "hybrid_shard": "write true, with dp_replicate over the nodes",
    },
    (schema.DpShard, "offload"): _ON_HOST,
    (schema.DpShard, "reduce_dtype"): _DTYPES,
    (schema.Adapter, "target_modules"): {
        "all-linear": "write their names: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj for Llama",
    },
    (schema.Cp, "rotate"): dict.fromkeys(("ring", "alltoallv", "a2a"), "write alltoall"),
    **{
        (kind, "degree"): _DEGREE
        for kind in (schema.DpReplicate, schema.DpShard, schema.Tp, schema.Pp, schema.Cp, schema.Ep)
    },
}


def remedy(kind: type, name: str, value: object) -> str:
    """What to write instead of a value that another program would take; empty if none is known to."""
    folded = str(value).casefold()
    if (kind, name) == (schema.Optimizer, "name") and (meant := OPTIMIZERS.get(folded)) is not None:
        arguments = "".join(f", {key}: {str(each).lower()}" for key, each in meant.items() if key != "name")
        return f"write {{name: {meant['name']}{arguments}}}" if arguments else f"write {meant['name']}"
    return _REMEDIES.get((kind, name), {}).get(folded, "")

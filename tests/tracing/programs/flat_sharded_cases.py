"""Jobs under FullyShardedDataParallel that are run as processes that meet over gloo, and traced on paper."""

from __future__ import annotations

from functools import partial

from sharded_cases import DECODER, HALF, LLAMA, TEXT, X, sharded

from planner.job.schema import Eval, Recompute

flat = partial(sharded, kind="fsdp1")

PAIRS = [
    flat("full-shard", DECODER, 2, train={**TEXT, "gradient_clipping": 1.0}),
    flat("original-parameters", DECODER, 2, train={**TEXT, "gradient_clipping": 1.0}, use_orig_params=True),
    flat("flat-mixed", DECODER, 2, train={**TEXT, "precision": "fsdp_mixed"}, reduce_dtype="bfloat16"),
    flat(
        "autocast-too", DECODER, 2, train={**TEXT, "precision": "fsdp_mixed"}, autocast=True, use_orig_params=True,
        backward_prefetch="",
    ),
    flat("shard-grad-op", DECODER, 2, train={**TEXT, "gradient_accumulation_steps": 2}, reshard_after_forward=False),
    flat(
        "flat-unreduced", DECODER, 2, no_sync=True, backward_prefetch="BACKWARD_POST",
        train={**TEXT, "gradient_accumulation_steps": 3, "recompute": Recompute(mode="full")},
    ),
    flat("no-shard", DECODER, 2, train={**TEXT, "precision": "fsdp_mixed"}, no_shard=True),
    flat("prefetching", DECODER, 2, train=dict(TEXT), forward_prefetch=True, limit_all_gathers=False),
    flat("flat-tied", LLAMA, 2, train={**TEXT, "eval": Eval(micro_batch_size=4, every=2)}),
    flat("by-size", DECODER, 2, train=dict(TEXT), wrap_size=20_000),
    flat("alone", DECODER, 2, train=dict(TEXT), groups=("embedding", "head")),
    flat("flat-frozen", HALF, 2, train={"inputs": X, "micro_batch_size": 64}, use_orig_params=True),
]  # fmt: skip
"""Worlds of two."""

FOURS = [
    flat("hybrid-shard", DECODER, 4, replicas=2, train={**TEXT, "precision": "fsdp_mixed"}),
    flat("hybrid-shard-2", DECODER, 4, replicas=2, train=dict(TEXT), reshard_after_forward=False),
]
"""Worlds of four."""

"""Mixtures of experts that are run on a real CPU, alone and as processes that meet over gloo, and traced on paper."""

from __future__ import annotations

from typing import Any

from planner.job.schema import Cluster, DpShard, Ep, Job, Metadata, Model, Optimizer, Parallel, Recompute, Train

_SMALL = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "num_experts_per_tok": 2}  # fmt: skip
MIXTRAL = {"model_type": "mixtral", "intermediate_size": 256, "num_local_experts": 8, **_SMALL}
QWEN = {"model_type": "qwen3_moe", "intermediate_size": 256, "moe_intermediate_size": 64, "head_dim": 32,
        "num_experts": 16, **_SMALL, "num_experts_per_tok": 4}  # fmt: skip
DEEPSEEK = {"model_type": "deepseek_v3", "intermediate_size": 256, "moe_intermediate_size": 64, **_SMALL,
            "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
            "first_k_dense_replace": 1}  # fmt: skip


def mixture(
    name: str, config: dict[str, Any], *, ep: int = 1, dp_shard: int = 1, imbalance: float = 1.0, **train: Any
) -> Job:
    return Job(
        metadata=Metadata(name=name),
        model=Model(hf_config=config),
        train=Train(
            **{
                "micro_batch_size": 4,
                "sequence_length": 64,
                "iterations": 2,
                "optimizer": Optimizer(name="AdamW"),
                **train,
            }
        ),
        parallel=Parallel(dp_shard=DpShard(degree=dp_shard), ep=Ep(degree=ep, imbalance=imbalance)),
        cluster=Cluster(gpus_per_node=ep * dp_shard),
    )


ALONE = [
    mixture("mixtral", MIXTRAL),
    mixture("mixtral-loop-uneven", {**MIXTRAL, "experts_implementation": "eager"}, imbalance=4.0),
    mixture("deepseek-v3", DEEPSEEK),
]
PAIRS = [
    mixture("sharded", MIXTRAL, dp_shard=2),
    mixture("split", MIXTRAL, ep=2),
    mixture("split-uneven", MIXTRAL, ep=2, imbalance=1.5, gradient_clipping=1.0),
    mixture("split-recomputed", QWEN, ep=2, recompute=Recompute(mode="full")),
    mixture("split-deepseek", DEEPSEEK, ep=2, precision="fsdp_mixed"),
]
"""Worlds of two."""
FOURS = [mixture("split-and-sharded", MIXTRAL, ep=2, dp_shard=2, gradient_clipping=1.0)]
"""Worlds of four."""

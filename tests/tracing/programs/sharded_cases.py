"""Jobs under fully_shard that are run as processes that meet over gloo, and traced on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.job.schema import (
    Cluster,
    Decoder,
    DpReplicate,
    DpShard,
    Eval,
    Input,
    Job,
    Metadata,
    Model,
    Optimizer,
    Parallel,
    Recompute,
    Train,
)

_HERE = str(Path(__file__).parent)
DECODER = Model(decoder=Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=192, vocab=500))
LLAMA = Model(
    hf_config={
        "model_type": "llama", "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192, "tie_word_embeddings": True,
    }
)  # fmt: skip
_IMAGES = {"images": Input(shape=(3, 32, 32)), "labels": Input(shape=(), dtype="int64", maximum=10)}
X = {"x": Input(shape=(256,)), "labels": Input(shape=(), dtype="int64", maximum=10)}


def sharded(name: str, model: Model, ranks: int, *, replicas: int = 1, train: dict[str, Any], **shard: Any) -> Job:
    optimizer = train.pop("optimizer", Optimizer(name="AdamW"))
    return Job(
        metadata=Metadata(name=name),
        model=model,
        train=Train(**{"micro_batch_size": 8, "iterations": 2, "optimizer": optimizer, **train}),
        parallel=Parallel(
            dp_replicate=DpReplicate(degree=replicas), dp_shard=DpShard(degree=ranks // replicas, **shard)
        ),
        cluster=Cluster(gpus_per_node=ranks),
    )


TEXT: dict[str, Any] = {"sequence_length": 32}


def _text(**more: Any) -> dict[str, Any]:
    return {**TEXT, **more}


def factory(name: str, **arguments: Any) -> Model:
    return Model(factory=f"small_models:{name}", factory_path=_HERE, factory_arguments=arguments)


HALF = factory("Half", unused=False)
_UNEVEN = Model(decoder=Decoder(layers=2, hidden=72, heads=3, kv_heads=3, ffn=195, vocab=501))

PAIRS = [
    sharded("resharded", DECODER, 2, train=_text(gradient_clipping=1.0)),
    sharded("mixed", DECODER, 2, train=_text(precision="fsdp_mixed"), keep_last=True),
    sharded("accumulating", DECODER, 2, train=_text(gradient_accumulation_steps=2), reshard_after_forward=False),
    sharded(
        "unreduced",
        DECODER,
        2,
        train=_text(gradient_accumulation_steps=2, recompute=Recompute(mode="full")),
        no_sync=True,
    ),
    sharded("grouped", DECODER, 2, train=_text(), groups=("embedding", "norm head"), keep_last=True),
    sharded("tied", LLAMA, 2, train=_text(eval=Eval(micro_batch_size=4, every=2))),
    sharded("convolutions", factory("Convolutional", channels=31), 2, train={"inputs": _IMAGES}),
    sharded("frozen", HALF, 2, train={"inputs": X, "micro_batch_size": 64}),
]
"""Worlds of two."""

FOURS = [
    sharded("uneven", _UNEVEN, 4, train=_text()),
    sharded("to-two", DECODER, 4, train=_text(), reshard_after_forward=2),
    sharded("hybrid", DECODER, 4, replicas=2, train=_text(precision="fsdp_mixed")),
]
"""Worlds of four."""

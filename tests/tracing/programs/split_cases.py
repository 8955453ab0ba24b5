"""Jobs under tensor parallelism that are run as two processes that meet over gloo, and traced on paper."""

from __future__ import annotations

from typing import Any

from planner.job.schema import (
    Cluster,
    Decoder,
    Eval,
    Job,
    Metadata,
    Model,
    Optimizer,
    Parallel,
    Tp,
    Train,
)

_DECODER = Model(decoder=Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000))
_TIED = Model(decoder=Decoder(layers=1, hidden=128, heads=4, kv_heads=4, ffn=384, vocab=1001, tie_embeddings=True))
_SIZES = {
    "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 384,
}  # fmt: skip
_QWEN = Model(hf_config={"model_type": "qwen3", "head_dim": 32, **_SIZES})
_NORMED = Model(
    decoder=Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000, head_dim=48, qk_norm=True)
)
_LLAMA = Model(hf_config={"model_type": "llama", **_SIZES})


def split(name: str, model: Model, *, train: dict[str, Any] | None = None, **tp: Any) -> Job:
    given = {"sequence_length": 64, "micro_batch_size": 8, "iterations": 2, **(train or {})}
    return Job(
        metadata=Metadata(name=name),
        model=model,
        train=Train(optimizer=Optimizer(name="AdamW"), **given),
        parallel=Parallel(tp=Tp(degree=2, **tp)),
        cluster=Cluster(gpus_per_node=2),
    )


_CLIPPED = {"gradient_clipping": 1.0}
PAIRS = [
    split("split", _DECODER, train=_CLIPPED),
    split("split-tokens", _DECODER, sequence_parallel=True, train=_CLIPPED),
    split("split-logits", _DECODER, loss_parallel=True),
    split("split-tied", _TIED, train={"eval": Eval(micro_batch_size=4, every=2)}),
    split("split-llama", _LLAMA, train=_CLIPPED),
    split("split-qwen-tokens", _QWEN, sequence_parallel=True, train=_CLIPPED),
    split("split-heads-normed", _NORMED, sequence_parallel=True),
]
"""Worlds of two."""

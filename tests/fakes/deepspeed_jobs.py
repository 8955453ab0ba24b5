"""Small jobs that DeepSpeed's stages 1 and 2 divide, and those whose real runs are compared."""

from __future__ import annotations

from typing import Any

from planner.job.schema import Cluster, Decoder, DpReplicate, Gpu, Job, Metadata, Model, Parallel, Train

BF16 = {"bf16": {"enabled": True}}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
ADAMW = {"optimizer": {"type": "AdamW"}}


def divided(
    name: str = "",
    ranks: int = 2,
    *,
    stage: int = 2,
    steps: int = 1,
    layers: int = 2,
    config: dict[str, Any] | None = None,
    **zero: Any,
) -> Job:
    decoder = Decoder(layers=layers, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)
    written = {
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 150_000, **zero},
        "gradient_clipping": "auto",
    }
    return Job(
        metadata=Metadata(name=name),
        model=Model(decoder=decoder),
        train=Train(
            micro_batch_size=8,
            sequence_length=64,
            iterations=2,
            gradient_accumulation_steps=steps,
            gradient_clipping=1.0,
        ),
        parallel=Parallel(dp_replicate=DpReplicate(degree=ranks), deepspeed={**written, **(config or {})}),
        cluster=Cluster(gpus_per_node=ranks, gpu=Gpu(total_bytes=80 * 2**30, arch="sm_90")),
    )


PAIRS = [
    divided("stage-2"),
    divided("stage-1", stage=1),
    divided("accumulated", steps=2),
    divided("accumulated-1", stage=1, steps=2),
    divided("reduced-whole", reduce_scatter=False),
    divided("in-fp32", steps=2, config={**BF16, "data_types": {"grad_accum_dtype": "fp32"}}),
    divided("in-fp32-whole", config={**BF16, "data_types": {"grad_accum_dtype": "fp32"}}, reduce_scatter=False),
    divided("large", reduce_bucket_size=100_000),
]

"""Jobs of post-training that are run as processes on a CPU, without their engines, and traced on paper."""

from __future__ import annotations

from planner.job.schema import (
    Cluster,
    Decoder,
    DpShard,
    FrozenModel,
    Job,
    Metadata,
    Model,
    Optimizer,
    Parallel,
    PostTraining,
    Rollout,
    Train,
    TrainerOffload,
    WeightSync,
)

_DECODER = Model(decoder=Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=192, vocab=500))
_ENGINE = Rollout(gpu_memory_utilization=0.5, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64)


def post_training(name: str, said: PostTraining, *, ranks: int = 1, precision: str = "none") -> Job:
    return Job(
        metadata=Metadata(name=name),
        model=_DECODER,
        train=Train(
            micro_batch_size=8,
            sequence_length=32,
            iterations=2,
            precision=precision,
            optimizer=Optimizer(name="AdamW"),
        ),
        post_training=said,
        parallel=Parallel(dp_shard=DpShard(degree=ranks)),
        cluster=Cluster(gpus_per_node=ranks),
    )


ALONE = [
    post_training(
        "rests",
        PostTraining(
            rollout=_ENGINE,
            trainer_offload=TrainerOffload(parameters=True, optimizer=True),
            reference=FrozenModel(micro_batch_size=4, dtype="float32"),
            reward=FrozenModel(micro_batch_size=2, dtype="float32", offload=False),
        ),
    ),
]
PAIRS = [
    post_training(
        "shards-rest",
        PostTraining(
            rollout=_ENGINE,
            weight_sync=WeightSync(bucket_bytes=200_000),
            trainer_offload=TrainerOffload(parameters=True, optimizer=True),
            reference=FrozenModel(micro_batch_size=4, offload=False),
        ),
        ranks=2,
        precision="fsdp_mixed",
    ),
    post_training("shards-stay", PostTraining(rollout=_ENGINE, reward=FrozenModel(offload=False)), ranks=2),
]

"""Jobs that save and load checkpoints, run as two processes that meet over gloo, and traced on paper."""

from __future__ import annotations

from planner.job.schema import (
    CheckpointLoad,
    CheckpointSave,
    Cluster,
    Decoder,
    DpReplicate,
    DpShard,
    Job,
    Metadata,
    Model,
    Parallel,
    Train,
)

_DECODER = Model(decoder=Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=192, vocab=500))


def saved(
    name: str, save: CheckpointSave | None = None, load: CheckpointLoad | None = None, *, ddp: bool = False
) -> Job:
    """Over two ranks; what is loaded lies on the device, as on a CPU there is no other place."""
    return Job(
        metadata=Metadata(name=name),
        model=_DECODER,
        train=Train(micro_batch_size=8, sequence_length=32, iterations=2, checkpoint_save=save, checkpoint_load=load),
        parallel=Parallel(dp_replicate=DpReplicate(degree=2 if ddp else 1), dp_shard=DpShard(degree=1 if ddp else 2)),
        cluster=Cluster(gpus_per_node=2),
    )


def _loaded(kind: str) -> CheckpointLoad:
    return CheckpointLoad(kind=kind, map_location="cpu" if kind == "dcp" else "device", optimizer=True)


SHARDED = [
    saved("full", CheckpointSave(kind="full_state_dict", every=1)),
    saved("full-offloaded", CheckpointSave(kind="full_state_dict", cpu_offload=True)),
    saved("sharded", CheckpointSave(kind="sharded_state_dict")),
    saved("dcp", CheckpointSave(kind="dcp")),
    saved("dcp-async", CheckpointSave(kind="dcp_async", every=1)),
    saved("resumed", load=_loaded("full_state_dict")),
    saved("resumed-broadcast", load=_loaded("full_state_dict_from_rank0")),
    saved("resumed-dcp", load=_loaded("dcp")),
]
REPLICATED = [
    saved("ddp", CheckpointSave(kind="full_state_dict", every=1), _loaded("state_dict"), ddp=True),
    saved("ddp-full", load=_loaded("full_state_dict"), ddp=True),
]
PAIRS = [*SHARDED, *REPLICATED]

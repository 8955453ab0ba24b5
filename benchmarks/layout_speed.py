"""Seconds for plans of large layouts: a pipeline of 16,384 ranks, and fully_shard over 64.

Run: python benchmarks/layout_speed.py {pipeline,sharded,staged} [--layers N] [--dp N] [--processes N] [--one-class]

`pipeline` is Llama-3.1-405B's shape with TP 8, 16 stages of interleaved 1F1B and 32 micro-batches; all of its rank
classes are planned. `sharded` is Llama-3-8B's shape over 64 ranks. `staged` is a small pipeline with as many stages,
and so rank classes, as layers. Each is planned in a process that has planned
something small before, as the service's have.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.job.named_gpus import look_up
from planner.job.schema import (
    Allocator,
    Cluster,
    Decoder,
    DpShard,
    Gpu,
    Job,
    Model,
    Optimizer,
    Parallel,
    Pp,
    Recompute,
    Tp,
    Train,
)
from planner.planning.plan import plan_job
from planner.planning.planned_classes import trace_class

FUSED = Optimizer(name="AdamW", arguments={"fused": True})


@dataclass(frozen=True, slots=True)
class Spent:
    """What one plan took."""

    wall_seconds: float
    processor_seconds: float
    """Of all processes together."""
    rank_classes: int


def pipeline(layers: int = 126, dp: int = 128) -> Job:
    """Llama-3.1-405B's shape with `layers` layers over 16 stages, TP 8 and `dp` shards."""
    return Job(
        model=Model(decoder=Decoder(layers=layers, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256)),
        train=Train(
            micro_batch_size=1, sequence_length=8192, gradient_accumulation_steps=32, precision="fsdp_mixed",
            recompute=Recompute(mode="full"), gradient_clipping=1.0, optimizer=FUSED,
        ),
        parallel=Parallel(
            pp=Pp(degree=16, schedule="Interleaved1F1B"),
            dp_shard=DpShard(degree=dp, reshard_after_forward=False),
            tp=Tp(degree=8, sequence_parallel=True, loss_parallel=True),
        ),
        cluster=Cluster(nodes=16 * dp, gpus_per_node=8, gpu=_h100()),
        allocator=Allocator(conf="expandable_segments:True"),
    )  # fmt: skip


def sharded(layers: int = 32, dp: int = 64) -> Job:
    """Llama-3-8B's shape with `layers` layers, fully sharded over `dp` ranks."""
    return Job(
        model=Model(decoder=Decoder(layers=layers, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)),
        train=Train(
            micro_batch_size=1, sequence_length=8192, precision="fsdp_mixed", gradient_clipping=1.0,
            recompute=Recompute(mode="selective"), optimizer=FUSED,
        ),
        parallel=Parallel(dp_shard=DpShard(degree=dp)),
        cluster=Cluster(nodes=max(1, dp // 8), gpus_per_node=min(8, dp), gpu=_h100()),
        allocator=Allocator(conf="expandable_segments:True"),
    )  # fmt: skip


def staged(layers: int = 18) -> Job:
    """A pipeline, of which each stage is a rank class: one layer and four micro-batches, however many stages."""
    return Job(
        model=Model(decoder=Decoder(layers=layers, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256)),
        train=Train(micro_batch_size=1, sequence_length=32, gradient_accumulation_steps=4),
        parallel=Parallel(pp=Pp(degree=layers, schedule="GPipe", split=(1,) * layers) if layers > 1 else Pp()),
        cluster=Cluster(nodes=layers, gpus_per_node=1, gpu=_h100()),
    )


CASES: dict[str, Callable[..., Job]] = {"pipeline": pipeline, "sharded": sharded, "staged": staged}


def measure(job: Job, processes: int = 1) -> Spent:
    """The plan of all ranks of this job, after a small one, by so many processes."""

    plan_job(sharded(layers=1, dp=2))
    wall, processor = time.perf_counter(), _processor_seconds()
    made = plan_job(job, processes=processes, keep_traces=processes == 1)
    return Spent(time.perf_counter() - wall, _processor_seconds() - processor, len(made.plan.rank_classes))


def measure_class(job: Job) -> Spent:
    """The rank class in the middle of this job alone, when the process has planned its neighbour before."""
    from planner.job.layout import Mesh, rank_classes
    from planner.planning import judging
    from planner.truth.calibration.interval import Calibration

    classes = rank_classes(Mesh.of(job.parallel))
    wall = processor = 0.0
    for each in classes[len(classes) // 2 - 1 :][:2]:
        wall, processor = time.perf_counter(), _processor_seconds()
        for traced in trace_class(job, each):
            judging.judge_trace(job, traced, Calibration.none())
    return Spent(time.perf_counter() - wall, _processor_seconds() - processor, 1)


def _processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _h100() -> Gpu:
    known = look_up("H100-SXM-80GB")
    return Gpu(name=known.name, total_bytes=known.total_bytes, arch=known.arch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--dp", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--one-class", action="store_true", help="only that in the middle")
    said = parser.parse_args()
    sizes = {name: value for name, value in (("layers", said.layers), ("dp", said.dp)) if value}
    job = CASES[said.case](**sizes)
    spent = measure_class(job) if said.one_class else measure(job, said.processes)
    print(json.dumps({
        "wall_seconds": round(spent.wall_seconds, 2), "processor_seconds": round(spent.processor_seconds, 2),
        "rank_classes": spent.rank_classes,
    }))  # fmt: skip


if __name__ == "__main__":
    main()

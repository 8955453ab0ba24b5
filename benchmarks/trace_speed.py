"""Processor seconds for tracing three iterations of a Llama-3-8B-shaped step, by one of three means.

Run: python benchmarks/trace_speed.py {paper,mem_tracker,fake} [--layers N] [--replicas N] [--repetitions N]

`paper` is planner's trace on a paper H100, events and their origins included. `mem_tracker` is torch's own
`torch.distributed._tools.mem_tracker.MemTracker` under FakeTensorMode, `fake` is FakeTensorMode that records nothing.
The last two run planner's own step, `planner.training`, on fake CPU tensors and never import planner.paper: without a
GPU, FakeTensorMode has no backward on cuda. They run one rank without DDP, since the reducer reads values of tensors.
MemTracker refuses to see a module twice unless its statistics are reset, so they are, before each iteration. Most of
its time goes into looking at every module's statistics after every operator (`_update_peak_stats`, torch 2.13).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable

from planner.job.schema import Cluster, Decoder, DpReplicate, Job, Model, Optimizer, Parallel, Train

LAYERS = 32


def job_of(layers: int, replicas: int) -> Job:
    """Llama-3-8B's shape with `layers` layers, in float32; foreach is said, since its default hinges on the device."""
    decoder = Decoder(layers=layers, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256)
    return Job(
        model=Model(decoder=decoder),
        train=Train(
            micro_batch_size=1,
            sequence_length=8192,
            optimizer=Optimizer(name="AdamW", arguments={"foreach": True}),
            iterations=3,
        ),
        parallel=Parallel(dp_replicate=DpReplicate(degree=replicas)),
        cluster=Cluster(gpus_per_node=replicas),
    )


def on_paper() -> Callable[[Job], int]:
    from planner.tracing.job_program import trace

    return lambda job: len(trace(job, target="sm_90").events)


def under_mem_tracker() -> Callable[[Job], int]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from planner.events import Phase
    from planner.training import step
    from planner.training.phases import Phases

    def run(job: Job) -> int:
        def reset_before_forwards(phase: Phase, _iteration: int) -> None:
            if phase is Phase.FORWARD:
                tracker.reset_mod_stats()

        with FakeTensorMode(), MemTracker() as tracker, Phases(reset_before_forwards).heard():
            step.run(job, torch.device("cpu"))
            return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])

    return run


def under_fake_tensors() -> Callable[[Job], int]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from planner.training import step

    def run(job: Job) -> int:
        with FakeTensorMode():
            step.run(job, torch.device("cpu"))
            return 0

    return run


MEANS = {"paper": on_paper, "mem_tracker": under_mem_tracker, "fake": under_fake_tensors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("means", choices=MEANS)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    run = MEANS[arguments.means]()
    run(job_of(1, arguments.replicas))  # whatever torch does once per process is no part of a step
    job = job_of(arguments.layers, arguments.replicas)
    seconds, found = [], 0
    for _ in range(arguments.repetitions):
        gc.collect()
        began = time.process_time()
        found = run(job)
        seconds.append(time.process_time() - began)
    if arguments.means != "paper":
        assert "planner.paper" not in sys.modules
    json.dump({"seconds": seconds, "found": found}, sys.stdout)


if __name__ == "__main__":
    main()

"""How the processor seconds of a plan grow with layers, micro-batches, ranks and rank classes.

Run: python benchmarks/growth.py

Each figure is of one plan in this process, trace and judgement, without advice and after a small plan; the jobs are
Llama-3-8B's shape by FSDP2, but for the classes: those are stages of one layer each, of a small model.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable

import layout_speed

from planner.job.schema import Job
from planner.planning.plan import plan_job

LAYERS = (8, 16, 32, 64, 128, 256)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RANKS = (8, 64, 512, 4096, 32_768, 131_072)
CLASSES = (1, 2, 4, 8, 18, 50, 100, 200)


def accumulating(micro_batches: int) -> Job:
    job = layout_speed.sharded()
    return dataclasses.replace(job, train=dataclasses.replace(job.train, gradient_accumulation_steps=micro_batches))


def measure(job: Job) -> float:
    """Processor seconds of the plan."""

    began = time.process_time()
    plan_job(job)
    return time.process_time() - began


def show(title: str, counts: Iterable[int], job_of: Callable[[int], Job]) -> None:
    found = {count: measure(job_of(count)) for count in counts}
    print(f"| {title} | " + " | ".join(f"{count:,}" for count in found) + " |")
    print("|---|" + "---:|" * len(found))
    print("| processor seconds | " + " | ".join(f"{seconds:.2f}" for seconds in found.values()) + " |\n", flush=True)


def main() -> None:
    measure(layout_speed.sharded(layers=1, dp=2))
    show("layers", LAYERS, lambda count: layout_speed.sharded(layers=count))
    show("micro-batches in a step", MICRO_BATCHES, accumulating)
    show("ranks", RANKS, lambda count: layout_speed.sharded(dp=count))
    measure(layout_speed.staged(2))
    show("rank classes", CLASSES, layout_speed.staged)


if __name__ == "__main__":
    main()

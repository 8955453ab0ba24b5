"""The training of the test's job: the spec's decoder for real, on the CPU, with the callback in its loop.

Run: python train.py JOB.yaml STOP. After two iterations it waits for the file STOP, two minutes at most, and ends.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from planner.job.loading import load_job
from planner.training.models.build import build
from planner.truth.measuring.memory_report import report_memory

LONGEST_SECONDS = 600.0
FIGURES = ("requested", "allocated", "active", "reserved")


def main(spec: str, stop: Path) -> None:
    job = load_job(Path(spec))
    assert job.model.decoder is not None
    size = (job.train.micro_batch_size, job.train.sequence_length)
    with report_memory(read=host_memory, every=0) as memory:
        model = build(job.model, torch.device("cpu"))
        optimizer = torch.optim.AdamW(model.parameters())
        while memory.iteration < 2:
            tokens = torch.randint(job.model.decoder.vocab, size)
            torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()
        wait_for(stop)
    print(f"trained {memory.iteration} iterations")


def wait_for(stop: Path) -> None:
    """A job that has not ended is what the dashboards show."""
    until = time.monotonic() + LONGEST_SECONDS
    while not stop.exists() and time.monotonic() < until:
        time.sleep(0.1)


def host_memory() -> Mapping[str, int]:
    """What Linux counts of this process, in the place of CUDA's allocator and driver."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    current, peak = pages * resource.getpagesize(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    levels = {f"{name}_bytes.all.current": current for name in FIGURES}
    return levels | {f"{name}_bytes.all.peak": peak for name in FIGURES} | {"device_bytes": peak}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

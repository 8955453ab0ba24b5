"""Runs programs for which planner can make a spec too, and prints docs/results/programs.md's table of run beside plan.

    PYTHONPATH=. python tests/slow/clients/run_beside_plan.py FOLDER [--only TEXT]

FOLDER is that of `materials.py`. No spec is written by hand: the run saves it (`--save-spec`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Event
from planner.job.launching.line import parse
from planner.job.loading import load_yaml
from planner.job.named_gpus import look_up
from planner.job.schema import Job
from planner.planning.job_plan import plan_job
from planner.planning.program import inputs_of
from planner.planning.program_spec import spec_text
from planner.runtime.fork_server import ForkServer
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS, lasting_server, run_rank

GPU = "H100-SXM-80GB"
ITERATIONS = 3
Peaks = tuple[int, int, int]
"""Requested, allocated, reserved bytes."""
_HERE = Path(__file__).parent
_PROGRAMS = _HERE.parents[1] / "tracing/running/programs"
_TORCHRUN = "torchrun --nproc-per-node 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A program, and how its spec comes about."""

    program: str
    layout: str
    line: str
    spec: Callable[[str, RankRun], Job]
    """Of the launch line, and of the run."""

    @property
    def name(self) -> str:
        return f"{self.program}, {self.layout}"


def _saved(line: str, run: RankRun) -> Job:
    words = line.split()
    return load_yaml(spec_text(run, inputs_of(parse(words), words, look_up(GPU))))


def pairs() -> tuple[Pair, ...]:
    """All of them."""
    return (
        Pair(program="loop of its own", layout="DDP 4", line=f"{_TORCHRUN} {_PROGRAMS}/in_a_world.py ddp", spec=_saved),
        Pair(
            program="loop of its own", layout="FSDP2 4", line=f"{_TORCHRUN} {_PROGRAMS}/in_a_world.py fsdp", spec=_saved
        ),
    )


def ran(pair: Pair, server: ForkServer) -> RankRun:
    """Rank 0 of its program."""
    known, line = look_up(GPU), parse(pair.line.split())
    gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes)
    order = ProgramOrder(line=line, rank=0, gpu=gpu, steps=ITERATIONS)
    return run_rank(order, replace(USUAL_LIMITS, seconds=600), None if line.environment else server)


def spec_of(pair: Pair, run: RankRun) -> Job:
    """Its spec, of as many iterations and with the allocator settings that the program was seen to have."""
    job = pair.spec(pair.line, run)
    return replace(
        job, train=replace(job.train, iterations=ITERATIONS), allocator=replace(job.allocator, conf=run.allocator_conf)
    )


def planned(job: Job) -> Peaks:
    """Rank 0 of a spec; in a fresh process."""
    from planner import paper  # noqa: F401 - before torch
    from planner.tracing.program.packages import libraries

    with libraries.declared():  # transformers imports torchvision, whose wheel wants another torch than ours
        trace = plan_job(job).traces[0].trace
    return peaks_of(trace.written_out(), job.allocator.conf)


def peaks_of(events: Sequence[Event], conf: str) -> Peaks:
    found = replay(events, Rules.from_conf(conf))
    return max(found.requested_bytes), found.peak_allocated_bytes, found.peak_reserved_bytes


def line_of(pair: Pair, run: Peaks, plan: Peaks) -> str:
    """A row of the table."""
    cells = (f"{there / 2**20:,.1f} | {(here / there - 1) * 100:+.3f} %" for there, here in zip(run, plan, strict=True))
    return f"| {pair.program} | {pair.layout} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.chdir(options.folder)
    server = lasting_server()
    fresh = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    for pair in (each for each in pairs() if options.only in each.name):
        run = ran(pair, server)
        plan = fresh.submit(planned, spec_of(pair, run)).result()
        print(line_of(pair, peaks_of(run.trace.written_out(), run.allocator_conf), plan), flush=True)
    fresh.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the service adds to a plan: a hit in the store, and a new plan beside the same one in a warm process.

Run: python benchmarks/service_speed.py [JOBS]
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from planner.job import loading
from planner.job.schema import Job

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama-3-8b-sft.yaml"
HITS = 200
_WARM_PROCESS = """
import json, sys, time
from planner import paper
from planner.planning.plan import plan_job
from planner.job.loading import load_bundle
for line in sys.stdin:
    began = time.perf_counter()
    plan_job(load_bundle(json.loads(line)))
    print(time.perf_counter() - began, flush=True)
"""


def measure(jobs: int = 5) -> dict[str, float]:
    """Median seconds: of a hit in memory, of one in the database, of a new plan here and in a warm process."""
    from planner.service.local_ray import environment, free_port_range, instance_folder, local_ray

    with instance_folder() as folder:
        # Ray starts its workers at niceness 15: on a busy machine it would be that which is measured.
        os.environ.update({**environment(folder, free_port_range()), "RAY_worker_niceness": "0"})
        with local_ray(folder, num_cpus=2, log_to_driver=False), _warm_process() as elsewhere:
            return asyncio.run(_measured(jobs, folder, elsewhere))


async def _measured(jobs: int, folder: Path, elsewhere: Callable[[Job], float]) -> dict[str, float]:
    from planner.service.app import tracers
    from planner.service.history.counters import Counters
    from planner.service.history.store import History
    from planner.service.plan_provider import CalibrationInUse, PlanProvider
    from planner.settings import Settings

    settings = Settings(database=f"sqlite:///{folder / 'history.db'}", trace_workers=1)
    with History.open(settings.database) as history:
        made = tracers(settings, history, 1, Counters(history.totals))
        made.start()

        def plan_provider() -> PlanProvider:
            return PlanProvider(settings, history, made, CalibrationInUse(history))

        async def here(job: Job) -> float:
            seconds = await _timed(plan_provider(), job)
            while made.entry_count:  # its trace is stored after the answer
                await asyncio.sleep(0.01)
            return seconds

        variants = list(_variants(jobs + 1))
        await here(variants[0])
        elsewhere(variants[0])  # both have seen such a job
        pairs = [(await here(job), elsewhere(job)) for job in variants[1:]]
        replica = plan_provider()
        in_memory = [await _timed(replica, variants[0]) for _ in range(HITS)]
        in_database = [await _timed(plan_provider(), variants[0]) for _ in range(HITS)]
        await made.finish()
    return {
        "hit in memory": median(in_memory),
        "hit in the database": median(in_database),
        "new plan": median(new for new, _ in pairs),
        "in a warm process": median(warm for _, warm in pairs),
        "more than in a warm process": median(new - warm for new, warm in pairs),
    }


async def _timed(plan_provider: Any, job: Job) -> float:
    began = time.perf_counter()
    await plan_provider.plan(job)
    return time.perf_counter() - began


def _variants(count: int) -> Iterator[Job]:
    """Jobs of the same length of work, none of them the same."""
    job = loading.load_job(EXAMPLE)
    for number in range(count):
        train = dataclasses.replace(job.train, sequence_length=job.train.sequence_length - 64 * number)
        yield dataclasses.replace(job, train=train)


@contextlib.contextmanager
def _warm_process() -> Iterator[Callable[[Job], float]]:
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-c", _WARM_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, stdout = child.stdin, child.stdout

        def seconds(job: Job) -> float:
            stdin.write(json.dumps(loading.bundle(job)) + "\n")
            stdin.flush()
            return float(stdout.readline())

        try:
            yield seconds
        finally:
            child.kill()
            child.wait()


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)))

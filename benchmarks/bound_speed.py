"""Processor seconds for the lower bound of each example, without PyTorch.

Run: python benchmarks/bound_speed.py [--repetitions N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from planner.job.bound.lower_bound import lower_bound
from planner.job.loading import load_job
from planner.job.schema import Job

EXAMPLES = Path(__file__).parents[1] / "examples"
AT_ONCE = 100
"""Bounds between two looks at the clock."""


def seconds(job: Job, repetitions: int) -> float:
    """Of one bound: the median of some hundreds."""
    spent = []
    for _ in range(repetitions):
        began = time.process_time()
        for _ in range(AT_ONCE):
            lower_bound(job)
        spent.append((time.process_time() - began) / AT_ONCE)
    return median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    repetitions = parser.parse_args().repetitions
    jobs = {path.stem: load_job(path) for path in sorted(EXAMPLES.rglob("*.yaml"))}
    found = {name: seconds(job, repetitions) for name, job in jobs.items()}
    assert "torch" not in sys.modules
    print(json.dumps({"jobs": len(found), "slowest_seconds": max(found.values()), "by_job": found}))


if __name__ == "__main__":
    main()

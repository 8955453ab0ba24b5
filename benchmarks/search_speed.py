"""Seconds of searches: candidates of a 70B layout, and the largest micro-batch of an 8B job.

Run: python benchmarks/search_speed.py {search,max} [--seconds N]

`search` is Llama-3-70B's shape on 256 GPUs in every usual layout and setting, `max` the micro-batch of Llama-3-8B by
FSDP2 over 64; both from cold processes, without a cache of traces. Seconds are of the clock and of the processor, those
of all processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"
GLOBAL_BATCH = 256


def searched(seconds: float) -> dict[str, Any]:
    """What the search found and took."""
    found = _run("search", str(EXAMPLES / "llama-3-70b-fsdp2-tp8.yaml"), "--gpus", "256", "--global-batch",
                 str(GLOBAL_BATCH), "--top", "20", "--time", str(seconds))  # fmt: skip
    space = found["document"]["space"]
    jobs = space["looked_at"] - sum(space["broken_rules"].values())
    return {
        "candidates": space["looked_at"], "jobs": jobs, "planned": space["planned"], "traced": space["traced"],
        "fitting": len(found["document"]["candidates"]), "first_seconds": found["document"]["seconds"]["first"],
        "complete": found["document"]["complete"], **found["spent"],
    }  # fmt: skip


def largest() -> dict[str, Any]:
    """The largest micro-batch, and what it took."""
    found = _run("max", str(EXAMPLES / "llama-3-8b-fsdp2.yaml"), "micro_batch_size")
    return {"value": found["document"]["value"], "planned": len(found["document"]["planned"]), **found["spent"]}


def _run(*words: str) -> dict[str, Any]:
    began, before = time.monotonic(), os.times()
    ended = subprocess.run(
        [sys.executable, "-m", "planner", *words, "--format", "json", "--no-cache"],
        stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = os.times()
    processor = sum(getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system"))
    spent = {"wall_seconds": round(time.monotonic() - began, 2), "processor_seconds": round(processor, 2)}
    return {"document": json.loads(ended.stdout), "spent": spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("search", "max"))
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    print(json.dumps(searched(arguments.seconds) if arguments.what == "search" else largest()))


if __name__ == "__main__":
    main()

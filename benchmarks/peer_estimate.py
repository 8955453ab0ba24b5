"""What one tool says of one of the jobs of benchmarks/peers.py, in a process of its own.

Run: python benchmarks/peer_estimate.py TOOL JOB

Prints {"bytes": N}, or {"missing": "..."} for a tool that is not installed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys

import peer_jobs

ROOMS = {
    "planner": "peer_planner", "MemTracker": "peer_mem_tracker", "accelerate": "peer_accelerate",
    "DeepSpeed": "peer_deepspeed", "SimuMax": "peer_simumax",
}  # fmt: skip
"""The modules with the `estimate` of each tool; none of them loads another tool."""


def main() -> None:
    tool, name = sys.argv[1:]
    job = peer_jobs.find(name)
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed and SimuMax print
        try:
            said = {"bytes": importlib.import_module(ROOMS[tool]).estimate(job)}
        except ModuleNotFoundError as missing:
            if (missing.name or "planner").startswith("planner"):
                raise
            said = {"missing": f"{missing.name} is not installed"}
        except FileNotFoundError as missing:
            said = {"missing": str(missing)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()

"""What SimuMax says of a job of benchmarks/peers.py: its analytical peak of allocated memory, of the fullest stage.

SimuMax is on no package index: PLANNER_SIMUMAX names a clone of MooreThreads/SimuMax, whose own configs are used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from peer_jobs import PeerJob

from planner.units import GIB

VARIABLE = "PLANNER_SIMUMAX"


def estimate(job: PeerJob) -> int:
    """Raises FileNotFoundError where there is no clone."""
    root = Path(os.environ.get(VARIABLE, ""))
    if not (root / "simumax").is_dir() or VARIABLE not in os.environ:
        raise FileNotFoundError(f"not here: {VARIABLE} names a clone of MooreThreads/SimuMax")
    sys.path.insert(0, str(root))
    from simumax.core.perf_llm import PerfLLM

    files = job.simumax["files"]
    perf = PerfLLM()
    perf.configure(
        strategy_config=str(root / "configs" / "strategy" / f"{files['strategy']}.json"),
        model_config=str(root / "configs" / "models" / f"{files['model']}.json"),
        system_config=str(root / "configs" / "system" / f"{files['system']}.json"),
    )
    for settings, target in (("strategy", perf.strategy), ("model", perf.model_config)):
        for name, value in job.simumax[settings].items():
            setattr(target, name, value)
    perf.run_estimate()
    stages = perf.get_pp_stage_peak_mem(perf.analysis_mem(), "peak_mem", toG=True)
    return round(max(stages.values()) * GIB)

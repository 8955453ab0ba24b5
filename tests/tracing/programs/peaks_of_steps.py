"""What each phase of each step of some jobs takes on this machine's processor: run as a program, it prints JSON.

A job is a spec in YAML; the answer is by its place among the arguments `[[iteration, phase, peak of requested bytes,
requested bytes at its end], ...]`, beside the bytes that were not freed and those that live tensors account for.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch

from planner.job.loading import load_yaml
from planner.training import step
from planner.truth.measuring.host_recorder import HostRecorder
from planner.truth.measuring.job_rank import recorded
from planner.truth.measuring.measurement_lines import phases_of


def measure(spec: str) -> dict[str, Any]:
    """One run of the job's step, seen by torch's profiler."""
    recorder, device = HostRecorder(), torch.device("cpu")
    gc.collect()
    with recorder.profile():
        with recorded(recorder, "cpu"):
            outcome = step.run(load_yaml(spec), device)
        gc.collect()
    del outcome
    recording = recorder.build_recording()
    phases = [
        [each.iteration, each.phase, each.peak.requested_bytes, each.end.requested_bytes]
        for each in phases_of(recording.events)
    ]
    return {"phases": phases, "net_bytes": recording.net_bytes, "live_bytes": recording.live_bytes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([measure(spec) for spec in sys.argv[1:]]))

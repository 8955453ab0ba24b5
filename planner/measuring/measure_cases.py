"""What `planner measure` does: one job, its step on a device, one more line in a file; here, or as a child."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from planner.errors import MeasureError
from planner.job.loading import load_bundle
from planner.job.schema import Job
from planner.measuring import store
from planner.measuring.measure import measure
from planner.measuring.measurement import Measurement
from planner.runtime.channel import AnswerWriter

MEASUREMENTS = Path("measurements.jsonl")


def run_measure(
    job: Job, *, device: str = "cuda", rank: int = 0, out: Path = MEASUREMENTS, snapshot: Path | None = None
) -> Measurement:
    """Measures a job and appends the line to `out`.

    A world larger than one is measured with absent peers, unless the caller has initialised torch.distributed.
    Raises MeasureError.
    """
    chosen = _device(device)
    peers = "present" if torch.distributed.is_initialized() else "absent"
    measured = measure(job, chosen, rank=rank, peers=peers, snapshot=snapshot)
    store.append(out, [measured.measurement])
    return measured.measurement


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: the job of the bundle `job` on `device`, one line more in the file `out`."""
    run_measure(load_bundle(asked["job"], asked["name"]), device=asked["device"], out=Path(asked["out"]))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise MeasureError(f"there is no device {name!r}", allowed="cuda, cuda:1, cpu", place="--device") from None
    if device.type == "cuda":
        return torch.device("cuda", device.index or 0)
    return device

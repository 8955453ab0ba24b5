"""Runs in a process of its own: `worker.py paper|real JOBS.pickle ANSWERS.pickle [RANK MEETING]`.

The paper GPU must be there before torch, and must not be there at all where something is measured.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from typing import Any


def on_paper(job: Any, rank: int) -> dict[str, Any]:
    from planner.tracing.trace import trace

    traced = trace(job, rank, target="cpu")
    return {"events": traced.events, "ddp": dict(traced.buckets)}


def for_real(job: Any, rank: int) -> dict[str, Any]:
    import torch

    from planner.measuring.measure import measure

    peers = "present" if torch.distributed.is_initialized() else "absent"
    measured = measure(job, torch.device("cpu"), rank=rank, peers=peers)
    return {"events": measured.events, "measurement": measured.measurement, "ddp": dict(measured.measurement.ddp)}


def main(kind: str, jobs: str, answers: str, rank: str = "0", meeting: str = "") -> None:
    if kind == "paper":
        import planner.paper  # noqa: F401
    import torch

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # oneDNN lays tensors out as the processor likes it
    if meeting:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    run = on_paper if kind == "paper" else for_real
    found: dict[str, Any] = {}
    for job in pickle.loads(Path(jobs).read_bytes()):
        try:
            found[job.metadata.name] = run(job, int(rank))
        except Exception:
            found[job.metadata.name] = {"error": traceback.format_exc()}
    Path(answers).write_bytes(pickle.dumps(found))
    if meeting:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs in a process of its own: `saved_on_host.py paper|real` says how many bytes async_save takes on the host.

Of some 100 MB of parameters. On paper they are those of the trace's ledger; for real the growth of the resident set,
from the beginning of the phase to its highest point, without the pages of libraries that are read meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostFree
from planner.job.schema import CheckpointSave, Decoder, Job, Model, Optimizer, Train

JOB = Job(
    model=Model(decoder=Decoder(layers=1, hidden=1024, heads=8, kv_heads=8, ffn=4096, vocab=4096)),
    train=Train(
        sequence_length=8, iterations=1, optimizer=Optimizer(name="SGD"),
        checkpoint_save=CheckpointSave(kind="dcp_async"),
    ),
)  # fmt: skip


def on_paper() -> int:
    from planner.tracing.job_program import trace

    held: dict[int, int] = {}
    most, saves = 0, False
    for each in trace(JOB, target="sm_90").host:
        if isinstance(each, Mark):
            saves = each.phase is Phase.CHECKPOINT_SAVE
        elif isinstance(each, HostAlloc) and each.category is HostCategory.CHECKPOINT:
            held[each.block] = each.bytes
        elif isinstance(each, HostFree):
            held.pop(each.block, 0)
        most = max(most, sum(held.values())) if saves else most
    return most


def for_real() -> int:
    import torch

    from planner.training import step
    from planner.training.phases import Phases

    _save_once()
    before = 0

    def begin(phase: Phase, _iteration: int) -> None:
        nonlocal before
        if phase is Phase.CHECKPOINT_SAVE:
            Path("/proc/self/clear_refs").write_text("5")  # the highest point is that from here on
            before = _status("RssAnon")

    with Phases(begin).heard():
        kept: Any = step.run(JOB, torch.device("cpu"))
    assert kept.model is not None
    return _status("VmHWM") - _status("RssFile") - before


def _save_once() -> None:
    """What the first save imports is no part of the next."""
    import torch
    from torch.distributed.checkpoint.state_dict_saver import async_save

    with tempfile.TemporaryDirectory() as folder:
        written: Any = async_save({"few": torch.zeros(1)}, checkpoint_id=folder)
        written.result()


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    if sys.argv[1] == "paper":
        import planner.paper  # noqa: F401
    print(on_paper() if sys.argv[1] == "paper" else for_real())

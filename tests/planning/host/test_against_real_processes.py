"""What is said of the host, against processes of this machine: never more than they hold, but for 1 percent.

Ranks here are on a CPU, where parameters, gradients and the optimizer's state rest as they do on the host of a GPU that
offloads them; nothing is pinned, as that takes CUDA (test_pinned_memory.py has that part by torch's source).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured_alone import printed_by

from planner.allocator.host.replay import HostTimeline, PinnedRules, replay_host
from planner.events import Phase
from planner.host_events import HostCategory
from planner.job.loading import load_document
from planner.tracing.job_program import trace
from planner.tracing.program.host_memory import SMALLEST_BYTES

HERE = Path(__file__).parent
JOB: dict[str, Any] = {
    "model": {
        "decoder": {"layers": 2, "hidden": 1536, "heads": 12, "kv_heads": 12, "ffn": 6144, "vocab": 2048},
    },
    "train": {"sequence_length": 16, "iterations": 1, "optimizer": {"name": "AdamW"}},
    "parallel": {"dp_shard": {"degree": 2, "offload": "cpu"}},
    "cluster": {"gpus_per_node": 2, "gpu": "H100-SXM-80GB"},
}
NOT_PINNED = PinnedRules(largest_rounded_bytes=0, largest_kept_bytes=0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    on_cpu = {**JOB, "parallel": {"dp_shard": 2}}
    files = tmp_path_factory.mktemp("files")
    found: dict[str, Any] = printed_by(HERE / "real_processes.py", json.dumps(on_cpu), str(files))
    return found


@pytest.fixture(scope="module")
def offloaded() -> HostTimeline:
    return replay_host(trace(load_document(JOB)).host, NOT_PINNED)


@pytest.mark.parametrize(
    ("phase", "iteration", "share"),
    [
        # All but the temporaries of an optimizer on the host.
        pytest.param(Phase.OPTIMIZER_STEP, 1, 0.9, id="parameters, gradients and states in the optimizer step"),
        pytest.param(Phase.FORWARD, 1, 0.97, id="shards once the model is built"),
    ],
)
def test_each_rank_holds_at_least_what_is_said(
    measured: dict[str, Any], offloaded: HostTimeline, phase: Phase, iteration: int, share: float
) -> None:
    """The real ones pin nothing: what is pinned is compared as it was asked for."""
    parts = offloaded[phase, iteration]
    pinned = sum(bool(parts[category]) for category in (HostCategory.PARAMETER, HostCategory.GRADIENT))
    said = pinned * sum(_shards()) + parts[HostCategory.OPTIMIZER_STATE]

    for rank in measured["ranks"]:
        real = rank["load 0" if phase is Phase.FORWARD else f"{phase.value} {iteration}"]
        assert share * real < said < 1.01 * real


def test_pinned_blocks_are_those_of_the_same_step_rounded(offloaded: HostTimeline) -> None:
    """The parameters and gradients are in blocks of the next power of two, as torch takes them."""
    blocks = [1 << (each - 1).bit_length() for each in _shards(smallest=1)]
    parts = offloaded[Phase.OPTIMIZER_STEP, 1]

    assert parts[HostCategory.PARAMETER] == parts[HostCategory.GRADIENT] == sum(blocks)


def _shards(smallest: int = SMALLEST_BYTES) -> list[int]:
    """Bytes of each parameter's half; a norm's is less than a page, and lies in what the C library has taken anyway."""
    hidden, ffn, vocab = 1536, 6144, 2048
    layer = [hidden * hidden] * 4 + [hidden * ffn] * 3 + [hidden] * 2
    every = (*layer, *layer, vocab * hidden, vocab * hidden, hidden)
    return [each * 4 // 2 for each in every if each * 4 // 2 >= smallest]

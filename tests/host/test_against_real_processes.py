"""What is predicted of the host, against processes of this machine: within 5 percent.

Ranks here are on a CPU, where parameters, gradients and the optimizer's state rest as they do on the host of a GPU that
offloads them; nothing is pinned, as that takes CUDA (tests/host/test_pinned_memory.py has that part by torch's source).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured_alone import printed_by

from planner.allocator.host import processes
from planner.allocator.host.processes import PinnedRules
from planner.allocator.host.replay import RankTimeline, loader_blocks, replay_host
from planner.events import Phase
from planner.host_events import HostCategory
from planner.job.loading import load_document
from planner.job.schema import DataLoader
from planner.tracing.host_ledger import SMALLEST_BYTES
from planner.tracing.spec.step_trace import trace

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


def within_5_percent(measured: float) -> Any:
    return pytest.approx(measured, rel=0.05)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    on_cpu = {**JOB, "parallel": {"dp_shard": 2}}
    files = tmp_path_factory.mktemp("files")
    found: dict[str, Any] = printed_by(HERE / "real_processes.py", json.dumps(on_cpu), str(files))
    return found


@pytest.fixture(scope="module")
def offloaded() -> RankTimeline:
    traced = trace(load_document(JOB))
    return replay_host(traced.host, base=(), loader=DataLoader(), rules=NOT_PINNED)


def test_parameters_gradients_and_states_of_each_rank_are_resident_in_the_optimizer_step(
    measured: dict[str, Any], offloaded: RankTimeline
) -> None:
    (step,) = (each for each in offloaded.phases if each.phase is Phase.OPTIMIZER_STEP)

    assert sum(step.own.values()) > 600e6
    assert [sum(step.own.values())] * 2 == [within_5_percent(rank["optimizer_step 1"]) for rank in measured["ranks"]]


def test_the_shards_of_each_rank_are_resident_once_the_model_is_built(
    measured: dict[str, Any], offloaded: RankTimeline
) -> None:
    (load,) = (each for each in offloaded.phases if each.phase is Phase.LOAD)

    assert [sum(load.own.values())] * 2 == [within_5_percent(rank["load 0"]) for rank in measured["ranks"]]


def test_a_file_that_is_read_is_there_once_for_every_rank(measured: dict[str, Any]) -> None:
    size = measured["size"]

    assert [size, size] == [within_5_percent(each["Rss"]) for each in measured["torch"]]
    assert 2 * size == within_5_percent(sum(each["Pss"] for each in measured["torch"]))


@pytest.mark.parametrize("how", ["torch_mmap", "safetensors"])
def test_a_file_that_is_mapped_is_resident_in_every_rank_and_there_once(measured: dict[str, Any], how: str) -> None:
    size = measured["size"]

    assert [size, size] == [within_5_percent(each["Rss"]) for each in measured[how]]
    assert size == within_5_percent(sum(each["Pss"] for each in measured[how]))


def test_workers_and_their_batches_are_as_large_as_they_are(measured: dict[str, Any]) -> None:
    found = measured["loader"]
    blocks = list(loader_blocks(DataLoader(workers=2, prefetch_factor=2), [found["batch"]]))
    sums = {
        category: sum(each.bytes * each.count for each in blocks if each.category is category)
        for category in (HostCategory.BATCH, HostCategory.WORKER)
    }

    assert sums[HostCategory.BATCH] == within_5_percent(found["shared"])
    assert sum(sums.values()) == within_5_percent(found["shared"] + found["own"])


def test_a_process_that_has_imported_torch_is_between_the_bounds_of_the_table(measured: dict[str, Any]) -> None:
    own = measured["process"]["Anonymous"]

    assert processes.TORCH.low_bytes <= own <= processes.TORCH.high_bytes


def test_pinned_blocks_are_those_of_the_same_step_rounded(offloaded: RankTimeline) -> None:
    """The same tensors; the parameters and gradients of each are in blocks of the next power of two."""
    traced = trace(load_document(JOB))
    pinned = replay_host(traced.host, base=(), loader=DataLoader(), rules=PinnedRules())
    (plain,), (rounded,) = (
        [each for each in found.phases if each.phase is Phase.OPTIMIZER_STEP] for found in (offloaded, pinned)
    )
    sizes = [1 << (each - 1).bit_length() for each in _shards()]

    assert rounded.own == {
        **plain.own, HostCategory.PARAMETER: sum(sizes), HostCategory.GRADIENT: sum(sizes),
    }  # fmt: skip


def _shards() -> list[int]:
    """Bytes of each parameter's half; a norm's is less than a page, and lies in what the C library has taken anyway."""
    hidden, ffn, vocab = 1536, 6144, 2048
    layer = [hidden * hidden] * 4 + [hidden * ffn] * 3 + [hidden] * 2
    every = (*layer, *layer, vocab * hidden, vocab * hidden, hidden)
    return [each * 4 // 2 for each in every if each * 4 // 2 >= SMALLEST_BYTES]

"""On a machine with a GPU: a few small cases of the matrix, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_truth.results import read_snapshots
from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import verify

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))}
pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no NVIDIA GPU")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("truth")
    for only in ("mlp-fp32-adam", "mlp-ddp-"):
        command = [sys.executable, "-m", "gpu_truth", "--out", str(folder), "--small", "--only", only]
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True)
    return folder


def _lines(folder: Path) -> dict[str, dict[str, Any]]:
    lines = map(json.loads, (folder / "measurements.jsonl").read_text().splitlines())
    return {each["case"]: each for each in lines}


def test_every_phase_has_the_allocators_own_peaks(measured: Path) -> None:
    adam = _lines(measured)["mlp-fp32-adam"]
    phases = [(each["phase"], each["iteration"]) for each in adam["phases"]]
    assert phases[:4] == [("load", 0), ("forward", 1), ("backward", 1), ("optimizer_step", 1)]
    assert adam["categories"]["optimizer_state"] == 2 * adam["categories"]["parameter"]
    assert all(each["peak"]["reserved_bytes"] >= each["peak"]["allocated_bytes"] > 0 for each in adam["phases"])
    assert adam["memory_stats"]["num_alloc_retries"] == 0


def test_the_recorded_history_replays_to_the_measured_peaks(measured: Path, tmp_path: Path) -> None:
    history = tmp_path / "mlp-fp32-adam.pickle.xz"
    history.write_bytes(read_snapshots(measured)[history.name])
    (device,) = verify(read_snapshot(history)).devices
    assert device.first_difference is None
    assert device.peak_allocated_bytes == _lines(measured)["mlp-fp32-adam"]["peak"]["allocated_bytes"]


def test_one_gpu_is_a_rank_of_a_larger_world(measured: Path) -> None:
    copy, view = _lines(measured)["mlp-ddp-copy"], _lines(measured)["mlp-ddp-view"]
    assert (copy["world_size"], copy["peers"]) == (8, "absent")
    assert copy["peak"]["allocated_bytes"] > view["peak"]["allocated_bytes"]

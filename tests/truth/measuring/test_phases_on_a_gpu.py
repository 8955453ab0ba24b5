"""The phases and roles of a job's program, as they are measured on a GPU: on the paper one, and with figures set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch_with_figures

from planner.truth.measuring.rank_recorder import Recorder

PROGRAM = Path(__file__).with_name("measured_on_paper.py")
JOB = """
model: {decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}}
train: {micro_batch_size: 2, sequence_length: 32, iterations: 2}
cluster: {gpus_per_node: 1, gpu: A100-SXM-40GB}
"""
MIB = 2**20


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was planned and what was measured of one run."""
    folder = str(tmp_path_factory.mktemp("paper"))
    ended = subprocess.run([sys.executable, str(PROGRAM), JOB, folder], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def test_each_phase_has_the_peak_and_the_end_that_it_has_on_paper(both: dict[str, Any]) -> None:
    (device,) = both["measured"]["devices"]

    assert [
        [each["phase"], each["iteration"], each["peak"]["requested_bytes"], each["end"]["requested_bytes"]]
        for each in device["phases"]
    ] == both["planned"]["phases"]
    assert device["memory_stats"]["allocated_bytes.all.peak"] > 0


def test_what_stays_is_named_as_on_paper(both: dict[str, Any]) -> None:
    kept = {name: both["planned"]["categories"][name] for name in ("parameter", "gradient", "optimizer_state")}

    assert both["measured"]["categories"] == kept


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """Of a process whose torch has figures of its own."""
    return Recorder(
        SimpleNamespace(__version__="2.9.1", version=SimpleNamespace(cuda="12.8"), cuda=figures()), str(tmp_path)
    )


def figures() -> ModuleType:
    module = ModuleType("figures")
    exec(torch_with_figures.CUDA, vars(module))
    return module


def written(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())  # type: ignore[no-any-return]


def test_a_step_that_runs_out_of_memory_has_its_phases_up_to_there(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
    take: Callable[[int, int], None] = recorder.torch.cuda.take
    take(4 * MIB, 6 * MIB)
    recorder.mark("forward", 1)
    take(9 * MIB, 12 * MIB)
    take(1 * MIB, 12 * MIB)
    monkeypatch.setattr(sys, "last_value", error, raising=False)

    recorder.end()

    found = written(tmp_path)
    assert found["out_of_memory"] == {
        "phase": "forward", "iteration": 1, "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
    }  # fmt: skip
    assert [
        (each["phase"], each["peak"]["allocated_bytes"], each["end"]["allocated_bytes"])
        for each in found["devices"][0]["phases"]
    ] == [("load", 4 * MIB, 4 * MIB), ("forward", 9 * MIB, MIB)]


def test_where_the_driver_does_not_count_by_process_all_that_is_used_is_of_who_is_alone(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.torch.cuda.mem_get_info = lambda _: (30 * MIB, 40 * MIB)
    recorder.driver.is_alone = True
    recorder.torch.cuda.take(4 * MIB, 6 * MIB)

    recorder.end()

    found = written(tmp_path)
    assert (found["device_bytes_by"], found["devices"][0]["phases"][0]["device_bytes"]) == ("device", 10 * MIB)

"""Single cases of the matrix as a rehearsal on a CPU runs them: probes and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_truth.one_case import measure_one
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import Measurement


def measured(name: str, out: Path, **more: Any) -> Measurement:
    asked = {"name": name, "out": str(out), "device": "cpu", "small": True, "alone": True, **more}
    measure_one(asked, None)  # type: ignore[arg-type]
    return measurement_lines.read(out / f"{name}.jsonl")[-1]


def test_device_bytes_are_read_after_each_kind_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    found = measured("device-bytes-eager", tmp_path).operator

    assert found["module_loading"] == "EAGER"
    assert [row["after"] for row in found["rows"]] == [
        "context", "matrix products", "norms and losses", "optimizer", "attention", "convolutions", "sorting",
        "Fourier transforms", "solvers",
    ]  # fmt: skip
    assert [row for row in found["rows"] if "error" in row] == []


@pytest.mark.parametrize("name", ["streams", "graph-pools"])
def test_streams_and_pools_run_what_a_cpu_has_of_them(tmp_path: Path, name: str) -> None:
    assert [row["reserved_bytes"] for row in measured(name, tmp_path).operator["rows"]] == [0]


def test_a_program_runs_unedited_and_leaves_no_figures_where_there_is_no_gpu(tmp_path: Path) -> None:
    found = measured("program-fine-tune", tmp_path)

    assert (found.command[0], found.exit_code, found.phases) == ("python", 0, ())
    assert found.operator["without_figures"] == "it ended without having used CUDA"

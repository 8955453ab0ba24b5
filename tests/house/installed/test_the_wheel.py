"""The wheel with the torch that the index gives, which on Linux is a CUDA build: it plans, runs and serves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from planner_serve import Service, serving

REPOSITORY = Path(__file__).parents[3]
PROGRAMS = REPOSITORY / "tests" / "tracing" / "running" / "programs"
GPU = "H100-SXM-80GB"
JOB: dict[str, Any] = {
    "model": {"decoder": {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512, "vocab": 1024}},
    "train": {"micro_batch_size": 1, "sequence_length": 128},
    "cluster": {"gpu": GPU},
}


def command(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command that the wheel has installed, in a folder without planner's sources."""
    planner = Path(sys.executable).with_name("planner")
    return subprocess.run(
        [planner, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False, timeout=900
    )


def test_torch_is_a_cuda_build_on_a_machine_without_a_gpu() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.version.cuda, torch.cuda.is_available())"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip

    assert said[0] != "None"
    assert said[1] == "False"


def test_a_spec_is_planned(tmp_path: Path) -> None:
    ended = command("plan", REPOSITORY / "examples/nemotron-4b-ddp.yaml", "--format", "json", folder=tmp_path)

    assert ended.returncode == 3, ended.stderr
    plan = json.loads(ended.stdout)
    assert plan["verdict"] == "exceeds"
    assert plan["provenance"]["torch"] == version("torch")
    assert [change["change"] for change in plan["advice"]] == [{"parallel.dp_replicate.gradient_as_bucket_view": True}]
    assert [line for line in ended.stderr.splitlines() if "arning" in line] == []


@pytest.mark.parametrize("way", ["eager", "model"])
def test_a_program_is_run(tmp_path: Path, way: str) -> None:
    """Compiled behind DDP it is in tests/tracing/running/test_compiled_programs.py, which the wheel runs as well."""
    ended = command(
        "run", "--gpu", GPU, "--format", "json", "--", "python", PROGRAMS / "compiled.py", way, folder=tmp_path
    )

    assert ended.returncode == 0, ended.stderr
    run = json.loads(ended.stdout)
    assert run["verdict"] == "fits"
    assert [rank_class["ranks"] for rank_class in run["rank_classes"]] == ["0"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('store')}/plans.db", trace_workers=1) as started:
        yield started


def test_the_service_plans(service: Service) -> None:
    answer = service.post(JOB)

    assert answer.status_code == 200, answer.text
    assert answer.json()["verdict"] == "fits"

"""`planner validate`: on this machine, through a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner import cli

pytestmark = pytest.mark.cluster

JOB = """
metadata: {name: small}
model:
  decoder: {layers: 2, hidden: 128, heads: 4, kv_heads: 2, ffn: 384, vocab: 1000}
train: {micro_batch_size: 4, sequence_length: 64, iterations: 2}
cluster: {gpus_per_node: 1, gpu: H100-SXM-80GB}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def test_a_rehearsal_finds_its_place_as_on_a_gpu_and_measures_on_the_cpu(job: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["RAY_raylet_start_wait_time_s"] = "200"
    command = ["validate", str(job), "--gpu", "A100-SXM-40GB", "--rehearse", "--format", "json"]
    ended = subprocess.run(
        [sys.executable, "-m", "planner", *command],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr[-3000:]
    document = json.loads(ended.stdout)
    assert (document["device"]["kind"], document["error_of"]) == ("cpu", "kept")
    assert document["error_percent"] < 0.5
    assert "predicting, then measuring" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "H100-SXM-8GB"], "there is no GPU `H100-SXM-8GB` in the catalog"),
        (["--mode", "alone"], "'alone' is not a mode"),
        (["--ranks", "3"], "3 cannot be one of the ranks"),
    ],
)
def test_what_cannot_be_validated_is_said_before_ray_starts(
    job: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(job), *arguments]) == 2
    assert said in capsys.readouterr().err

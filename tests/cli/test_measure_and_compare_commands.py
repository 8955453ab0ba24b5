"""`planner measure` writes what a step took, `planner compare` sets the plan beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from standard_error import without_progress

from planner import cli

JOB = """
metadata: {name: small}
model:
  decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}
train: {micro_batch_size: 2, sequence_length: 32, optimizer: AdamW, iterations: 2}
parallel: {dp_replicate: 2}
cluster: {gpus_per_node: 2, gpu: A100-SXM-40GB}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a job, and its measurement on this CPU, made in a process that has no paper GPU."""
    where = tmp_path_factory.mktemp("measured")
    (where / "job.yaml").write_text(JOB)
    command = ["measure", "job.yaml", "--device", "cpu", "--output", "measured.jsonl"]
    ended = subprocess.run(
        [sys.executable, "-m", "planner", *command], cwd=where, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert ended.stderr.endswith("small: one line more in measured.jsonl\n")
    return where


def test_a_measurement_is_one_line_of_json(folder: Path) -> None:
    lines = (folder / "measured.jsonl").read_text().splitlines()

    assert len(lines) == 1
    found = json.loads(lines[0])
    assert (found["schema"], found["case"], found["device"]["kind"]) == ("planner.measurement/1", "small", "cpu")


def test_a_job_is_compared_with_what_it_keeps_on_a_cpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(folder / "job.yaml"), str(folder / "measured.jsonl"), "--format", "json"]) == 0

    compared = json.loads(capsys.readouterr().out)
    exact = {each["name"]: each["predicted"] - each["measured"] for each in compared["categories"]}
    assert exact == {"parameter": 0, "gradient": 0, "bucket": 0, "optimizer_state": 0}
    assert compared["peak"] == []  # whose kernels are others


def test_a_case_that_was_not_measured_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "compare", str(folder / "job.yaml"), str(folder / "measured.jsonl"), "--case", "other",
        "--set", "train.iterations=1",
    ]  # fmt: skip

    assert cli.main(arguments) == 2
    assert "no measurement of 'other'" in capsys.readouterr().err


def test_the_second_stage_of_a_pipeline_is_compared_with_its_own_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, measured = tmp_path / "job.yaml", tmp_path / "measured.jsonl"
    job.write_text(JOB.replace("{dp_replicate: 2}", "{pp: {degree: 2, schedule: GPipe}}"))
    command = ["measure", str(job), "--device", "cpu", "--rank", "1", "--output", str(measured)]
    subprocess.run([sys.executable, "-m", "planner", *command], capture_output=True, check=True)

    assert cli.main(["compare", str(job), str(measured), "--rank", "1", "--format", "json"]) == 0

    compared = json.loads(capsys.readouterr().out)["categories"]
    assert {each["name"]: each["error_percent"] for each in compared if each["measured"]} == {
        "parameter": 0, "gradient": 0, "optimizer_state": 0,
    }  # fmt: skip


def test_a_device_that_is_none_is_said(folder: Path) -> None:
    command = [sys.executable, "-m", "planner", "measure", "job.yaml", "--device", "abacus"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert without_progress(ended.stderr) == "--device: there is no device 'abacus'\n  allowed: cuda, cuda:1, cpu\n"

"""The matrix that a real GPU is asked: complete, readable, and rehearsed on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from gpu_truth.matrix import GROUP_SECONDS, STEPS, cases
from planner.job.schema import Job

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))}
SHARE = "opinfo-share-07"


def test_the_small_matrix_has_the_same_cases() -> None:
    assert [case.name for case in cases(small=True)] == [case.name for case in cases()]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases, begun with one of them measured before."""
    folder = tmp_path_factory.mktemp("truth")
    for only in ("mlp-ddp-view", "mlp-ddp-"):
        _run(folder, only)
    return folder


@pytest.fixture(scope="module")
def rehearsed_share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    _run(folder, SHARE)
    return folder


def _run(folder: Path, only: str, *more: object, device: str = "cpu") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_truth", "--out", str(folder), "--device", device, "--small"]
    return subprocess.run(
        [*command, "--jobs", "2", "--only", only, *map(str, more)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def test_a_second_run_measures_what_is_left(rehearsed: Path) -> None:
    names = [each["case"] for each in _lines(rehearsed)]
    assert names == ["mlp-ddp-view", "mlp-ddp-copy"]
    assert "2 of them measured before" in _run(rehearsed, "mlp-ddp-").stderr
    assert [each["case"] for each in _lines(rehearsed)] == names


def test_a_rehearsed_step_says_what_it_took(rehearsed: Path) -> None:
    view, copy = _lines(rehearsed)
    assert view["error"] == copy["error"] == ""
    assert (view["world_size"], view["peers"], view["device"]["kind"]) == (8, "absent", "cpu")
    assert copy["peak"]["requested_bytes"] > view["peak"]["requested_bytes"]
    assert view["categories"]["bucket"] == view["categories"]["parameter"]


def test_all_of_torchs_operator_database_is_in_it() -> None:
    shares = [case.share for case in cases() if case.share is not None]

    assert sorted(each for first, step in shares for each in range(first, 1000, step)) == list(range(1000))


def test_what_tells_most_comes_first() -> None:
    assert [group for group, _ in groupby(case.group for case in cases())] == list(GROUP_SECONDS)


def test_of_the_steps_one_of_each_kind_comes_first() -> None:
    steps = [case for case in cases() if case.group == STEPS]
    first = [case for case in steps if case.snapshot]

    assert steps[: len(first)] == first
    axes = {name for c in first if c.job for name, size in _degrees(c.job).items() if size > 1}
    assert axes == {"dp_replicate", "dp_shard", "tp", "pp", "ep"}
    assert any("expandable" in case.allocator_conf for case in first)


def _degrees(job: Job) -> dict[str, int]:
    axes = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")
    return {name: getattr(job.parallel, name).degree for name in axes}


def test_a_rehearsed_share_of_the_database_says_what_its_operators_allocate(rehearsed_share: Path) -> None:
    said = _lines(rehearsed_share)
    samples = {each["operator"]["name"]: each["operator"]["samples"] for each in said[:-1]}

    assert (said[-1]["case"], said[-1]["operator"]) == (SHARE, {"share": [7, 24]})
    assert len(samples) == len(range(7, 702, 24 * 5))
    assert sum(size for (sample,) in samples.values() for size in sample["forward"] if size > 0) > 1000


def test_the_same_share_on_paper_is_set_beside_it(rehearsed_share: Path, tmp_path: Path) -> None:
    said = _run(tmp_path, SHARE, "--against", rehearsed_share, device="paper:sm_90").stdout.splitlines()[0]
    alike, differ, refused, not_compared = map(int, re.findall(r"\d+", said))

    assert alike > 0  # CPUs have other kernels: those that differ are no fault of paper's
    assert (alike + differ + refused, not_compared) == (len(range(7, 702, 24 * 5)), 0)


def test_a_case_that_is_not_begun_in_time_is_left_for_the_next_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu_truth", "--out", str(tmp_path), "--device", "cpu", "--small"]
    ended = subprocess.run(
        [*command, "--minutes", "0"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert f"0 measured, {len(cases())} not: device-bytes-lazy, " in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_comes_back_is_few_files(rehearsed: Path) -> None:
    assert sorted(each.name for each in rehearsed.iterdir()) == ["measurements.jsonl"]


def test_measuring_needs_neither_ray_nor_pydantic() -> None:
    script = (
        "import sys, planner.cli.measure_commands, gpu_truth.__main__, gpu_truth.campaign, gpu_truth.one_case\n"
        "import planner.truth.measuring.job_rank\n"
        "print(sorted({'ray', 'pydantic', 'planner.paper'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

"""From the lines of a device to plans: facts are learnt beside paper, put in place, and count in the next plan.

The device is a fake: its lines are those of paper, with steps that take a little more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import FactsError
from planner.job.loading import load_document
from planner.planning.gpu_truth import LearntFacts, learn_facts, on_paper
from planner.planning.plan import PlanningResult, plan_job
from planner.truth.calibration.interval import Calibration
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.units import MIB

GPU = "H200-SXM-141GB"
DEVICE = DeviceFacts(kind="cuda", name="NVIDIA H200", total_bytes=150_109_880_320, arch="sm_90")
SOFTWARE = {"torch": "2.13.0+cu130", "cuda": "13.0", "cudnn": "91900", "driver": "580.1"}


def planned(**of_job: Any) -> PlanningResult:
    return plan_job(load_document(document(**of_job), "job.yaml"))


def document(gpu: str = GPU, torch: str = "2.13") -> dict[str, Any]:
    return {
        "model": {"decoder": {"layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "ffn": 8, "vocab": 8}},
        "train": {"micro_batch_size": 1, "sequence_length": 8},
        "cluster": {"gpus_per_node": 1, "gpu": gpu},
        "software": {"torch": torch},
    }


def step_as_measured(line: Measurement, more: float) -> Measurement:
    def levels(given: Any) -> Any:
        return replace(given, reserved_bytes=round(given.reserved_bytes * (1 + more)))

    phases = tuple(
        replace(each, peak=levels(each.peak), device_bytes=levels(each.peak).reserved_bytes + 700 * MIB)
        for each in line.phases
    )
    return replace(line, device=DEVICE, software=SOFTWARE, phases=phases, device_bytes_by="process")


def as_measured(steps: list[Measurement]) -> list[Measurement]:
    return [step_as_measured(each, 0.001 * number) for number, each in enumerate(steps)]


@pytest.fixture(scope="module")
def steps() -> list[Measurement]:
    given = load_document(document(), "job.yaml")
    line = on_paper(given, given.cluster.gpu)
    return [replace(line, case=f"step-{number}") for number in range(20)]


@pytest.fixture
def learnt(steps: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LearntFacts, Path]:
    """The facts are learnt into the folder that is in place."""
    folder = tmp_path / "facts"
    folder.mkdir()
    monkeypatch.setenv("PLANNER_FACTS", str(folder))
    return learn_facts(as_measured(steps), steps, folder), folder


@pytest.mark.usefixtures("learnt")
def test_a_plan_for_that_gpu_and_torch_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    after = planned()
    monkeypatch.delenv("PLANNER_FACTS")
    before = planned()

    assert (before.plan.calibrated, after.plan.calibrated) == (False, True)
    assert after.plan.plan_id != before.plan.plan_id
    assert after.plan.trace_id == before.plan.trace_id
    here, there = (each.plan.rank_classes[0].peak.interval_bytes for each in (before, after))
    assert there[1] - there[0] < here[1] - here[0]


def test_what_was_learnt_is_told_and_steps_left_out_lie_in_the_interval_of_the_others(
    learnt: tuple[LearntFacts, Path],
) -> None:
    told, _ = learnt

    assert (told.gpu, told.torch, told.observations) == (GPU, "2.13", 20)
    assert told.coverage.observations == 20
    assert told.coverage.covered >= 19


def test_the_same_learnt_twice_is_the_same(learnt: tuple[LearntFacts, Path], steps: list[Measurement]) -> None:
    told, folder = learnt
    before = {path.name: path.read_text() for path in folder.iterdir()}

    assert learn_facts(as_measured(steps), steps, folder) == told
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_another_torch_on_paper_is_refused(steps: list[Measurement], tmp_path: Path) -> None:
    other = [replace(each, software={**each.software, "torch": "2.11.0"}) for each in steps]

    with pytest.raises(FactsError, match=r"are of torch 2\.11 and 2\.13"):
        learn_facts(as_measured(steps), other, tmp_path)


def test_a_gpu_that_the_catalog_does_not_know_is_refused(steps: list[Measurement], tmp_path: Path) -> None:
    unknown = DeviceFacts(kind="cuda", name="NVIDIA H999")
    device = [replace(each, device=unknown) for each in as_measured(steps)]

    with pytest.raises(FactsError, match="the measurements are of NVIDIA H999"):
        learn_facts(device, steps, tmp_path)


def test_nothing_measured_leaves_every_plan_uncalibrated() -> None:
    from planner.truth.calibration.learning import measured_calibration

    assert measured_calibration() == Calibration.none()

"""From the lines of a device to plans: facts are learnt beside paper, put in place, and count in the next plan.

The device is a fake: its lines are those of paper, with workspaces that paper does not know, and steps that take a
little more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import paper  # before torch

# isort: split
from gpu_truth.learning import learn_campaign
from gpu_truth.matrix import WORKSPACES, Case
from gpu_truth.operators_on_paper import measure_family
from planner.errors import FactsError
from planner.hardware.facts import workspace_table
from planner.job.loading import load_document
from planner.job.schema import Job
from planner.planning.gpu_truth import LearntFacts, on_paper
from planner.planning.pipeline import PlanningResult, plan_with_traces
from planner.truth.calibration.interval import Calibration
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.units import MIB

GPU = "H200-SXM-141GB"
DEVICE = DeviceFacts(kind="cuda", name="NVIDIA H200", total_bytes=150_109_880_320, arch="sm_90")
SOFTWARE = {"torch": "2.13.0+cu130", "cuda": "13.0", "cudnn": "91900", "driver": "580.1"}
WORKSPACE_BYTES = 640 * MIB
"""As much as no other tensor of the step: with it the peak is another."""


def job(**train: Any) -> Job:
    return load_document(
        {
            "model": {"hf_config": {
                "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1], "num_channels": 3,
            }},
            "train": {"micro_batch_size": 4, "inputs": {"pixel_values": {"shape": [3, 16, 16]}}, **train},
            "cluster": {"gpus_per_node": 1, "gpu": GPU},
        },
        "job.yaml",
    )  # fmt: skip


@pytest.fixture(scope="module")
def operators() -> list[Measurement]:
    """The convolutions of that model on paper, forward and backward."""
    entries: list[dict[str, Any]] = [
        {"name": f"{given}-to-{made}-kernel-{kernel}-stride-{stride}-size-{size}", "call": "nn.functional.conv2d",
         "tensors": [[4, given, size, size], [made, given, kernel, kernel]],
         "arguments": {"padding": kernel // 2, "stride": stride}}
        for given, made, kernel, stride, size in (
            (3, 8, 7, 2, 16), (8, 2, 1, 1, 4), (2, 2, 3, 1, 4), (2, 8, 1, 1, 4), (8, 8, 1, 2, 4), (2, 2, 3, 2, 4),
            (2, 8, 1, 1, 2),
        )
    ]  # fmt: skip
    case = Case(name="operators-model", group=WORKSPACES, operators=tuple(entries))
    with paper.gpu("sm_90", keeps_requests=True) as gpu:
        return list(measure_family(case, gpu, DeviceFacts(kind="paper", name="paper", arch="sm_90")))


def as_measured(line: Measurement) -> Measurement:
    """The same on the device: at every place where a library asks, it takes a workspace."""

    def taken(operator: dict[str, Any]) -> dict[str, Any]:
        found = {name: list(value) if isinstance(value, list) else value for name, value in operator.items()}
        for each in reversed(found.pop("workspaces", [])):
            size = WORKSPACE_BYTES if "forward" in each["kernel"] else 4096
            found[each["part"]][each["index"] : each["index"]] = [size, -size]
        return found

    operator = dict(line.operator)
    if "first_run" in operator:
        operator = {**taken(operator), "first_run": taken(operator["first_run"])}
    return replace(line, device=DEVICE, software=SOFTWARE, date="2026-11-20T10:00:00+00:00", operator=operator)


def step_as_measured(line: Measurement, more: float) -> Measurement:
    def levels(given: Any) -> Any:
        return replace(given, reserved_bytes=round(given.reserved_bytes * (1 + more)))

    phases = tuple(
        replace(each, peak=levels(each.peak), device_bytes=levels(each.peak).reserved_bytes + 700 * MIB)
        for each in line.phases
    )
    return replace(line, device=DEVICE, software=SOFTWARE, phases=phases, device_bytes_by="process")


@pytest.fixture(scope="module")
def steps() -> list[Measurement]:
    given = job()
    line = on_paper(given, given.cluster.gpu)
    return [replace(line, case=f"step-{number}") for number in range(20)]


@pytest.fixture
def learnt(
    operators: list[Measurement], steps: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[LearntFacts, Path]:
    """The facts are learnt into the folder that is in place."""
    folder = tmp_path / "facts"
    folder.mkdir()
    monkeypatch.setenv("PLANNER_FACTS", str(folder))
    device = [*map(as_measured, operators), *(step_as_measured(each, 0.001 * n) for n, each in enumerate(steps))]
    return learn_campaign(device, [*operators, *steps], folder), folder


def planned(given: Job) -> PlanningResult:
    return plan_with_traces(given)


@pytest.mark.usefixtures("learnt", "modelled")
def test_a_plan_for_that_gpu_and_torch_is_calibrated_with_the_workspaces_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = planned(job())
    monkeypatch.delenv("PLANNER_FACTS")
    before = planned(job())

    assert (before.plan.calibrated, after.plan.calibrated) == (False, True)
    here, there = before.plan.rank_classes[0], after.plan.rank_classes[0]
    assert here.at_peak["workspace"] < WORKSPACE_BYTES <= there.at_peak["workspace"]
    assert there.peak.reserved_bytes > here.peak.reserved_bytes + WORKSPACE_BYTES // 2
    assert after.plan.plan_id != before.plan.plan_id
    assert after.plan.trace_id != before.plan.trace_id
    assert not any("cuDNN convolution" in note for note in after.notes if "unknown size" in note)
    assert any(
        note.startswith(f"Workspaces as measured ({GPU}, torch 2.13.0+cu130, driver 580.1, 2026-11-20)")
        for note in after.notes
    )


@pytest.mark.usefixtures("learnt")
@pytest.mark.parametrize("other", [{"gpu": "H100-SXM-80GB"}, {"torch": "2.12"}], ids=str)
def test_a_plan_for_another_gpu_or_torch_is_as_before(other: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "model": {"decoder": {"layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "ffn": 8, "vocab": 8}},
        "train": {"micro_batch_size": 1, "sequence_length": 8},
        "cluster": {"gpus_per_node": 1, "gpu": other.get("gpu", GPU)},
        "software": {"torch": other.get("torch", "2.13")},
    }
    after = planned(load_document(document, "job.yaml"))
    monkeypatch.delenv("PLANNER_FACTS")
    before = planned(load_document(document, "job.yaml"))

    assert not after.plan.calibrated
    assert (after.plan.trace_id, after.plan.rank_classes) == (before.plan.trace_id, before.plan.rank_classes)


def test_what_was_learnt_is_told_and_steps_left_out_lie_in_the_interval_of_the_others(
    learnt: tuple[LearntFacts, Path],
) -> None:
    told, folder = learnt

    assert (told.gpu, told.torch, told.observations, told.unexplained) == (GPU, "2.13", 20, ())
    assert told.workspaces == len(workspace_table(GPU, "2.13", folder).facts) == 3 * 7  # no gradient of the images? one
    assert told.coverage.observations == 20
    assert told.coverage.covered >= 19


def test_the_same_learnt_twice_is_the_same(
    learnt: tuple[LearntFacts, Path], operators: list[Measurement], steps: list[Measurement]
) -> None:
    told, folder = learnt
    before = {path.name: path.read_text() for path in folder.iterdir()}
    device = [*map(as_measured, operators), *(step_as_measured(each, 0.001 * n) for n, each in enumerate(steps))]

    assert learn_campaign(device, [*operators, *steps], folder) == told
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_another_torch_on_paper_is_refused(operators: list[Measurement], tmp_path: Path) -> None:
    other = [replace(each, software={**each.software, "torch": "2.11.0"}) for each in operators]

    with pytest.raises(FactsError, match=r"are of torch 2\.11 and 2\.13"):
        learn_campaign([as_measured(each) for each in operators], other, tmp_path)


def test_a_gpu_that_the_catalog_does_not_know_is_refused(operators: list[Measurement], tmp_path: Path) -> None:
    device = [replace(as_measured(each), device=DeviceFacts(kind="cuda", name="NVIDIA H999")) for each in operators]

    with pytest.raises(FactsError, match="the measurements are of NVIDIA H999"):
        learn_campaign(device, operators, tmp_path)


def test_nothing_measured_leaves_every_plan_uncalibrated() -> None:
    from planner.truth.calibration.learning import measured_calibration

    assert measured_calibration() == Calibration.none()

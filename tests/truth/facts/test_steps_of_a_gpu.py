"""`planner gpu-truth`: usual steps beside their plans, learnt about a GPU that is a fake, up to the calibrated plan."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from planner import paper  # noqa: F401  before torch

# isort: split
from planner import cli
from planner.errors import FactsError, MeasureError
from planner.hardware.facts import facts_folder, read_lines, state_of
from planner.job.loading import load_document
from planner.job.schema import Job
from planner.planning.gpu_truth import gpu_of, learn_gpu, on_paper
from planner.planning.plan import plan_job
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.units import MIB

GPU = "H200-SXM-141GB"
DEVICE = DeviceFacts(kind="cuda", name="NVIDIA H200", total_bytes=150_109_880_320, arch="sm_90")


def step(name: str = "tiny", hidden: int = 32) -> Job:
    return load_document(
        {
            "metadata": {"name": name},
            "model": {"decoder": {"layers": 2, "hidden": hidden, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 200}},
            "train": {"micro_batch_size": 2, "sequence_length": 16},
            "cluster": {"gpus_per_node": 1, "gpu": GPU},
        },
        name,
    )


def measured(job: Job) -> Measurement:
    """As a device takes it: a MiB more than paper says, and a context of 700 MiB."""
    line = on_paper(job, gpu_of(DEVICE), case=job.metadata.name)
    phases = tuple(
        replace(
            each,
            peak=replace(each.peak, reserved_bytes=each.peak.reserved_bytes + MIB),
            device_bytes=each.peak.reserved_bytes + 701 * MIB,
        )
        for each in line.phases
    )
    software = {**line.software, "cuda": "13.0"}
    return replace(line, device=DEVICE, software=software, phases=phases, device_bytes_by="process")


def test_steps_are_learnt_and_plans_for_that_gpu_are_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    learnt, failed = learn_gpu(tmp_path, [step(), step("wider", 64)], told.append, measured=measured)

    assert (learnt.gpu, learnt.observations, failed) == (GPU, 2, [])
    for line in told:
        planned, seen = (int(figure.replace(",", "")) for figure in line.split() if figure[0].isdigit())
        assert seen - planned == MIB
    before = plan_job(step()).plan
    monkeypatch.setenv("PLANNER_FACTS", str(tmp_path))
    after = plan_job(step()).plan
    assert (before.calibrated, after.calibrated) == (False, True)
    table, corrected = (each.rank_classes[0].outside_allocator.cuda_context_bytes for each in (before, after))
    assert abs(corrected - 700 * MIB) < abs(table - 700 * MIB)


def test_the_lines_of_both_sides_are_kept(tmp_path: Path) -> None:
    learn_gpu(tmp_path, [step()], lambda _: None, measured=measured)

    sides = [measurement_lines.read(tmp_path / name) for name in ("measurements.jsonl", "paper.jsonl")]
    assert [[(each.case, each.device.kind) for each in side] for side in sides] == [
        [("tiny", "cuda")],
        [("tiny", "paper")],
    ]


def test_a_step_that_fails_is_named_and_the_others_teach(tmp_path: Path) -> None:
    told: list[str] = []

    def only_tiny(job: Job) -> Measurement:
        if job.metadata.name != "tiny":
            raise MeasureError("the device was lost")
        return measured(job)

    learnt, failed = learn_gpu(tmp_path, [step("lost"), step()], told.append, measured=only_tiny)

    assert (learnt.observations, failed, told[0]) == (1, ["lost"], "lost: the device was lost")


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is an NVIDIA GPU")
def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    told: list[str] = []

    with pytest.raises(MeasureError, match="no step could be measured"):
        learn_gpu(tmp_path, [step()], told.append, device="cuda")

    assert told == ["tiny: there is no CUDA device that this torch can use"]


def test_a_cpu_is_measured_by_the_same_child_and_teaches_nothing(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="the measurements are of no GPU"):
        learn_gpu(tmp_path, [step()], lambda _: None, device="cpu")

    assert list(tmp_path.iterdir()) == []


def test_steps_that_nobody_knows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gpu-truth", "--out", str(tmp_path), "--only", "gpt9"]) == 2

    assert "gpt2-bf16-fused" in capsys.readouterr().err


def test_a_folder_of_facts_that_is_not_there_is_refused() -> None:
    with pytest.raises(FactsError, match="PLANNER_FACTS: '/nowhere' is not a folder"):
        facts_folder({"PLANNER_FACTS": "/nowhere"})


@pytest.mark.parametrize(("line", "said"), [("{", "this line is not JSON"), ("[]", "this line is not an object")])
def test_a_damaged_line_is_refused_by_its_place(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "observations-h200.jsonl").write_text(f"{{}}\n{line}\n")

    with pytest.raises(FactsError, match=f"observations-h200.jsonl:2: {said}"):
        list(read_lines(state_of(tmp_path, "observations")))

"""What a process holds outside the allocator, and how sure of it planner is."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from planner.job.kinds import ANY
from planner.job.overhead import OutsideEstimate, outside
from planner.job.schema import Gpu, Software
from planner.truth.calibration.interval import Calibration, interval
from planner.truth.calibration.recorded_errors import reserved_band
from planner.units import GIB, MIB

H100 = Gpu(name="H100-SXM-80GB", total_bytes=79 * GIB, arch="sm_90")
A100 = Gpu(name="A100-SXM-80GB", total_bytes=79 * GIB, arch="sm_80")
TRUTH = Path(os.environ.get("PLANNER_TRUTH", Path(__file__).parents[3] / "../shared/truth"))


def test_a_single_process_pays_for_its_context_and_its_kernels_but_not_for_nccl() -> None:
    alone = outside(H100, Software(), [])

    assert (alone.cuda_context_bytes, alone.nccl_bytes) == ((614 + 164) * MIB, 0)
    assert alone == outside(H100, Software(), [1])


def test_eight_ranks_of_h100_hold_what_was_measured_before_the_first_kernel() -> None:
    estimate = outside(H100, Software(), [8])

    kernels = 164 * MIB
    assert estimate.total_bytes - kernels == 1510 * MIB
    assert estimate.low_bytes < 1506 * MIB < 1606 * MIB < estimate.high_bytes


def test_every_published_h100_and_h200_process_lies_in_the_interval() -> None:
    published = TRUTH / "published.json"
    if not published.exists():
        pytest.skip(f"no {published}: set PLANNER_TRUTH")
    rows = [row for row in json.loads(published.read_text()) if row["id"].startswith("nvidia_smi_overhead")]
    ours = [row for row in rows if row["gpu"].startswith(("H100", "H200")) and row["n_gpus"] == 8]

    # Values above 1,606 come from logs that list other programs on the same GPU as well.
    outliers = {1766, 1772, 1992, 2032}
    for row in ours:
        estimate = outside(Gpu(name=row["gpu"].split()[0], arch="sm_90"), Software(), [8])
        for mib in set(row["process_mib_values"]) - outliers - {520, 610, 614}:
            assert estimate.low_bytes < mib * MIB < estimate.high_bytes, row["id"]
    assert len(ours) > 15


def test_a_gpu_that_nobody_measured_takes_the_nearest_one_says_so_and_is_less_sure() -> None:
    measured, unmeasured = outside(H100, Software(), []), outside(A100, Software(), [])

    assert any("A100-SXM-80GB is not measured: taken from H100" in line for line in unmeasured.provenance)
    assert unmeasured.low_bytes < measured.low_bytes
    assert unmeasured.high_bytes > measured.high_bytes


@pytest.mark.parametrize(
    ("gpu", "taken_from"),
    [
        (Gpu(name="L4", arch="sm_89"), "RTX-6000-Ada"),
        (Gpu(name="A10G", arch="sm_86"), "RTX-3090"),
        (Gpu(name="T4", arch="sm_75"), "RTX-3090"),
        (Gpu(name="B200-180GB", arch="sm_100"), "H100"),
        (Gpu(arch="sm_90a"), "H100"),
        (Gpu(name="MI300X-192GB", arch="gfx942"), "H100"),
    ],
    ids=lambda value: value.name or value.arch if isinstance(value, Gpu) else value,
)
def test_the_nearest_is_of_the_same_kind_and_then_of_the_nearest_architecture(gpu: Gpu, taken_from: str) -> None:
    assert f"taken from {taken_from} " in outside(gpu, Software(), []).provenance[0]


def test_of_more_ranks_than_were_measured_the_upper_end_is_as_far_as_anybody_saw() -> None:
    measured, larger = outside(H100, Software(), [8]), outside(H100, Software(), [512])

    assert (larger.nccl_bytes, larger.low_bytes) == (measured.nccl_bytes, measured.low_bytes)
    assert larger.high_bytes - measured.high_bytes > 900 * MIB
    assert any(
        "NCCL, measured on H100 with 8 ranks" in line and "of 512 ranks up to" in line for line in larger.provenance
    )


def test_a_handle_of_cublas_13_widens_the_upper_end() -> None:
    before, since = (outside(H100, Software(torch="2.11", cuda=cuda), []) for cuda in ("12.8", "13.0"))

    assert (since.total_bytes, since.low_bytes) == (before.total_bytes, before.low_bytes)
    assert since.high_bytes - before.high_bytes == 65 * MIB


def test_each_further_communicator_adds_memory_unless_it_shares_its_parents_buffers() -> None:
    one, two = outside(A100, Software(), [4]), outside(A100, Software(), [4, 2])

    assert one.nccl_bytes == 688 * MIB
    assert two.nccl_bytes == (688 + 544) * MIB
    assert 0 < two.low_bytes - one.low_bytes < 60 * MIB


def test_a_name_that_only_begins_alike_is_another_gpu() -> None:
    assert "RTX-3090Ti is not measured" in outside(Gpu(name="RTX-3090Ti", arch="sm_86"), Software(), []).provenance[0]


def test_without_a_calibration_the_interval_is_the_tables_margin_and_that_of_recorded_runs() -> None:
    around = OutsideEstimate(cuda_context_bytes=700, nccl_bytes=300, low_bytes=600, high_bytes=1500)

    lowest, highest = interval(101_000, around, Calibration.none())

    low, high = reserved_band(ANY)
    assert low < 0 < high
    assert lowest == pytest.approx(101_000 - math.hypot(100_000 * low, 400), abs=1)
    assert highest == pytest.approx(101_000 + math.hypot(100_000 * high, 500), abs=1)


def test_a_calibration_narrows_and_shifts_the_interval() -> None:
    around = OutsideEstimate(cuda_context_bytes=1000, nccl_bytes=0, low_bytes=900, high_bytes=1100)
    learned = Calibration(id="h100-torch-2.13", reserved_error=0.01, outside_correction_bytes=50)

    assert learned.calibrated
    assert not Calibration.none().calibrated
    assert interval(101_000, around, learned) == (101_050 - round(math.hypot(1_000, 100)), 101_050 + 1_005)


def test_a_gpu_on_which_the_context_was_measured_takes_that_one() -> None:
    found = outside(Gpu(name="RTX3090-24GB", total_bytes=23 * GIB, arch="sm_86"), Software(), [])

    assert found.provenance[0].startswith("CUDA context of RTX-3090, measured with torch 2.7.1")

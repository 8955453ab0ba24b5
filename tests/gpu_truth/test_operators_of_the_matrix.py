"""Every operator of the matrix, on the paper GPU: each runs, and says where it asks for a workspace."""

from __future__ import annotations

import pytest

from planner import paper  # before torch

# isort: split
from gpu_truth.matrix import WORKSPACES, cases
from gpu_truth.operators_on_paper import measure_family
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement

FACTS = DeviceFacts(kind="paper", name="paper", arch="sm_90")


@pytest.fixture(scope="module")
def lines() -> list[Measurement]:
    with paper.gpu("sm_90", keeps_requests=True) as gpu:
        families = [case for case in cases(small=True) if case.group == WORKSPACES]
        return [line for case in families for line in measure_family(case, gpu, FACTS, small=True)]


def test_each_runs(lines: list[Measurement]) -> None:
    assert {line.case: line.error for line in lines if line.error} == {}
    assert len([line for line in lines if line.case.startswith("operator-")]) >= 180


def test_every_closed_library_is_asked_for_its_workspaces(lines: list[Measurement]) -> None:
    asked = {each["kernel"] for line in lines for each in line.operator.get("workspaces", ())}

    assert asked >= {
        "cuDNN convolution, forward", "cuDNN convolution, gradient of its input",
        "cuDNN convolution, gradient of its weight", "cuDNN transposed convolution, forward",
        "cuDNN batch normalization, forward", "cuDNN batch normalization, backward",
        "cuDNN recurrent network, forward", "cuDNN recurrent network, backward", "cuDNN recurrent network, reserve",
        "cuDNN attention, forward", "cuDNN attention, backward: beyond the front end's part", "cuFFT", "cuSOLVER",
        "grouped matrix product: its table of groups",
    }  # fmt: skip

"""Every operator of the matrix, on the paper GPU: each runs, forward and backward."""

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
    with paper.gpu("sm_90") as gpu:
        families = [case for case in cases(small=True) if case.group == WORKSPACES]
        return [line for case in families for line in measure_family(case, gpu, FACTS, small=True)]


def test_each_runs(lines: list[Measurement]) -> None:
    assert {line.case: line.error for line in lines if line.error} == {}
    assert len([line for line in lines if line.case.startswith("operator-")]) >= 180

"""Real post-training steps on a CPU, their engines left out, beside the same steps on a GPU on paper."""

from __future__ import annotations

from pathlib import Path

import post_training_cases as cases
import pytest
from cpu_runs import Both, assert_exact, both_ways

NAMES = [(each.metadata.name, 0) for each in cases.ALONE] + [
    (each.metadata.name, rank) for each in cases.PAIRS for rank in (0, 1)
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder: Path = tmp_path_factory.mktemp("runs")
    return both_ways(folder, [(cases.ALONE, 1), (cases.PAIRS, 2)], "post_training")


@pytest.mark.parametrize("which", NAMES, ids=lambda which: f"{which[0]}-{which[1]}")
def test_phases_and_what_is_kept_are_exact(runs: Both, which: tuple[str, int]) -> None:
    assert_exact(*runs[which])

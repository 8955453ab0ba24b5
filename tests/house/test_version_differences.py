"""By how much plans differ between versions of torch, over the examples that `make torch-versions` has planned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.upstream import torch_releases
from planner.upstream.torch_releases import largest_difference, read_peaks, sort_versions

EXAMPLES = Path(__file__).parents[2] / "examples"
PEAKS = {
    "2.6": {"small": [90, 100], "large": [900, 1100], "split": "torch.distributed has no such thing"},
    "2.9": {"small": [90, 110], "large": [900, 1100], "split": [50, 60]},
    "2.13": {"small": [90, 110], "large": [900, 1000], "split": [50, 90]},
}


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = tmp_path / "peaks.json"
    path.write_text(json.dumps(PEAKS))
    monkeypatch.setattr(torch_releases, "PEAKS", path)
    largest_difference.cache_clear()
    yield
    largest_difference.cache_clear()


@pytest.mark.usefixtures("planned")
def test_two_versions_differ_as_much_as_the_example_that_differs_most() -> None:
    assert largest_difference("2.9", "2.13") == largest_difference("2.13", "2.9") == 0.5


@pytest.mark.usefixtures("planned")
def test_an_example_that_one_of_them_does_not_plan_says_nothing_of_both() -> None:
    assert largest_difference("2.6", "2.9") == pytest.approx(0.1)


@pytest.mark.usefixtures("planned")
def test_a_version_that_was_never_measured_may_differ_as_much_as_any_two_do() -> None:
    assert largest_difference("2.5", "2.13") == 0.5


@pytest.mark.usefixtures("planned")
def test_a_version_does_not_differ_from_itself() -> None:
    assert largest_difference("2.13", "2.13") == largest_difference("2.5", "2.5") == 0


def test_the_measured_table_goes_from_the_oldest_version_to_the_newest_and_has_examples_that_there_are() -> None:
    known = read_peaks()

    assert list(known) == sort_versions(known)
    assert {name for planned in known.values() for name in planned} <= {each.stem for each in EXAMPLES.glob("*.yaml")}

"""The interval of an uncalibrated plan, held against every published row at hand, each source left out in turn.

`tests/data/published_residuals.json`: measured / predicted - 1 in percent, by source and approximated feature; the
rows are those of docs/results/accuracy.md (2026-11-20 to 22): specs and programs, reserved bytes where published.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner.job.loading import load_document
from planner.truth.calibration.correction import (
    EVERY_APPROXIMATION,
    Approximation,
    approximations_of_spec,
)
from planner.truth.calibration.interval import PRIOR_RESERVED_ERROR, reserved_band

_GROUPS = json.loads((Path(__file__).parents[1] / "data" / "published_residuals.json").read_text(encoding="utf-8"))


class Row(NamedTuple):
    source: str
    feature: str
    residual: float


ROWS = [Row(g["source"], g["feature"], percent / 100) for g in _GROUPS for percent in g["residual_percent"]]


def known_without(source: str) -> dict[str, Approximation]:
    """Each feature with what the other sources say of it; of one that they do not have, with all that they say."""
    others = [row for row in ROWS if row.feature and row.source != source]
    pooled = tuple(row.residual for row in others)
    return {
        each.name: replace(each, residuals=tuple(r.residual for r in others if r.feature == each.name) or pooled)
        for each in EVERY_APPROXIMATION
    }


def is_covered(row: Row) -> bool:
    features = [known_without(row.source)[row.feature]] if row.feature else []
    low, high = reserved_band(0.0, PRIOR_RESERVED_ERROR, features)
    return low <= row.residual <= high


def test_it_covers_between_90_and_99_percent_of_what_it_has_not_seen() -> None:
    share = sum(map(is_covered, ROWS)) / len(ROWS)

    assert 0.90 <= share <= 0.99


def test_without_what_is_known_of_approximations_it_would_not() -> None:
    share = sum(abs(row.residual) <= PRIOR_RESERVED_ERROR for row in ROWS) / len(ROWS)

    assert share < 0.90


@pytest.mark.parametrize("approximation", EVERY_APPROXIMATION, ids=lambda each: str(each.name))
def test_the_table_says_what_the_rows_say(approximation: Approximation) -> None:
    rows = sorted(row.residual for row in ROWS if row.feature == approximation.name)

    assert sorted(approximation.residuals) == pytest.approx(rows, abs=0.001)


def test_a_job_has_the_approximations_of_its_features() -> None:
    def names(**parts: Any) -> list[str]:
        document = {
            "model": {"hf_config": {"model_type": "llama"}},
            "train": {"sequence_length": 64},
            "cluster": {"gpus_per_node": 2 if "parallel" in parts else 1, "gpu": "H100-SXM-80GB"},
            **parts,
        }
        return [each.name for each in approximations_of_spec(load_document(document))]

    packed = {"hf_config": {"model_type": "llama"}, "adapter": {"kind": "qlora"}}
    split = {"tp": 2}

    assert names(model=packed) == ["four bits"]
    assert names(parallel=split, software={"torch": "2.7"}) == ["held collectives"]
    assert names(parallel=split, software={"torch": "2.10"}) == []

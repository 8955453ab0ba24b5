"""The example of a factory says how planner calls a model of one's own, and planner calls it so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from planner.events import Category
from planner.job.loading import load_job
from planner.planning.plan import plan_job

EXAMPLE = Path(__file__).parents[3] / "examples" / "own-model.yaml"


def test_the_example_of_a_factory_plans() -> None:
    job = load_job(EXAMPLE)
    small = dataclasses.replace(
        job,
        model=dataclasses.replace(job.model, factory_arguments={"width": 64, "layers": 2, "classes": 16}),
        train=dataclasses.replace(job.train, iterations=2),
    )

    found = plan_job(small).plan.rank_classes

    assert [str(each.ranks) for each in found] == ["0-3"]
    picture = 16 * 1000 * 80 * 4
    assert found[0].at_peak[Category.INPUT] >= picture

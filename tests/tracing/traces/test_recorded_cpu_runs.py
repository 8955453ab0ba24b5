"""A few of the recorded runs, made again now: a recording that no longer says what a step takes is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mixture_cases
import plain_cases
import pytest
import recorded_cpu_runs
import sharded_cases
import split_cases
from cpu_runs import Run, for_real, runs_of, without_errors

from planner.truth.measuring.measurement_lines import phases_of

RECORDED = {
    "plain": ((plain_cases.ALONE, 1), (plain_cases.REPLICATED, 2)),
    "sharded": ((sharded_cases.PAIRS, 2), (sharded_cases.FOURS, 4)),
    "split": ((split_cases.PAIRS, 2),),
    "mixtures": ((mixture_cases.ALONE, 1), (mixture_cases.PAIRS, 2), (mixture_cases.FOURS, 4)),
}
EACH = [
    ("plain", 1, "perceptron"),
    ("plain", 1, "convolutions"),
    ("plain", 1, "gpt2"),
    ("plain", 2, "ddp-copy"),
    ("sharded", 2, "resharded"),
    ("split", 2, "split"),
    ("mixtures", 2, "sharded"),
]


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[tuple[str, int], Run]]:
    found = {name: recorded_cpu_runs.read(name, worlds) for name, worlds in RECORDED.items()}
    return {name: runs_of(answers) for name, answers in found.items() if answers is not None}


@pytest.mark.parametrize(("recording", "world", "name"), EACH)
def test_it_still_takes_what_was_recorded(
    tmp_path: Path, recorded: dict[str, dict[tuple[str, int], Run]], recording: str, world: int, name: str
) -> None:
    if not recorded:
        pytest.skip("nothing is recorded of this software: all runs are made now")
    jobs = [job for jobs, size in RECORDED[recording] if size == world for job in jobs if job.metadata.name == name]
    live = runs_of(without_errors(for_real(tmp_path, [(jobs, world)]), {}))

    for rank in range(world):
        before, now = recorded[recording][name, rank], live[name, rank]
        assert now.categories == before.categories
        assert phases_of(now.events) == phases_of(before.events)


def test_every_recording_is_of_the_tested_software() -> None:
    """Those of constraints.txt: otherwise each run would be made again, and nobody would notice."""
    pinned = dict(
        line.split("==")
        for line in (Path(__file__).parents[3] / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    for path in recorded_cpu_runs.FOLDER.iterdir():
        software = recorded_cpu_runs.software_of(path)
        assert software == {name: pinned[name] for name in software}, path.name


def test_a_job_that_is_not_as_it_was_recorded_is_an_error(recorded: dict[str, dict[tuple[str, int], Run]]) -> None:
    if recorded_cpu_runs.MODE or "sharded" not in recorded:
        pytest.skip("nothing is recorded of this software: all runs are made now")
    first, *others = sharded_cases.PAIRS
    longer = replace(first, train=replace(first.train, micro_batch_size=first.train.micro_batch_size + 1))
    with pytest.raises(AssertionError, match=f"has no run of {first.metadata.name} as the jobs are now"):
        recorded_cpu_runs.read("sharded", [([longer, *others], 2)])

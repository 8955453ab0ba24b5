"""A few of the recorded runs, made again now: a recording that no longer says what a step takes is noticed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import mixture_cases
import plain_cases
import pytest
import recorded_cpu_runs
import sharded_cases
import soak
import split_cases
from cpu_runs import Run, for_real, runs_of, without_errors

from planner.job.schema import Job
from planner.truth.measuring.measurement_lines import phases_of

RECORDED = {
    "plain": ((plain_cases.ALONE, 1), (plain_cases.REPLICATED, 2)),
    "sharded": ((sharded_cases.PAIRS, 2), (sharded_cases.FOURS, 4)),
    "split": ((split_cases.PAIRS, 2),),
    "mixtures": ((mixture_cases.ALONE, 1), (mixture_cases.PAIRS, 2), (mixture_cases.FOURS, 4)),
}
ALONE = {"plain": ("perceptron", "convolutions", "gpt2")}
PAIRS = {"plain": ("ddp-copy",), "sharded": ("resharded",), "split": ("split",), "mixtures": ("sharded",)}
if not soak.IS_WHOLE:
    ALONE, PAIRS = {"plain": ("perceptron",)}, {"sharded": ("resharded",)}
pytestmark = [pytest.mark.soak] if soak.IS_WHOLE else []


def jobs_of(chosen: dict[str, tuple[str, ...]], world: int) -> Iterable[tuple[str, Job]]:
    for recording, names in chosen.items():
        every = {job.metadata.name: job for jobs, size in RECORDED[recording] if size == world for job in jobs}
        yield from ((recording, every[name]) for name in names)


EACH = [
    (recording, job.metadata.name, rank)
    for chosen, world in ((ALONE, 1), (PAIRS, 2))
    for recording, job in jobs_of(chosen, world)
    for rank in range(world)
]


@pytest.fixture(scope="module")
def live(
    tmp_path_factory: pytest.TempPathFactory, recorded: dict[str, dict[tuple[str, int], Run]]
) -> dict[tuple[str, int], Run]:
    """Jobs of two recordings that have one name would hide each other."""
    if not recorded:
        pytest.skip("nothing is recorded of this software: all runs are made now")
    worlds = [([job for _, job in jobs_of(chosen, world)], world) for chosen, world in ((ALONE, 1), (PAIRS, 2))]
    return runs_of(without_errors(for_real(tmp_path_factory.mktemp("runs"), worlds), {}))


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[tuple[str, int], Run]]:
    found = {name: recorded_cpu_runs.read(name, worlds) for name, worlds in RECORDED.items()}
    return {name: runs_of(answers) for name, answers in found.items() if answers is not None}


@pytest.mark.parametrize(("recording", "name", "rank"), EACH)
def test_it_still_takes_what_was_recorded(
    live: dict[tuple[str, int], Run], recorded: dict[str, dict[tuple[str, int], Run]], recording: str, name: str,
    rank: int,
) -> None:  # fmt: skip
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

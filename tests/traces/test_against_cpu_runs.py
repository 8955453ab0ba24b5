"""Real steps on a CPU, seen by torch's profiler, beside the same steps traced on paper with the kernels of a CPU."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.events import Alloc, Category, Event, Free, Mark, Role
from planner.measuring.event_phases import most_by_category, phases_of
from planner.measuring.measurement import Measurement

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_EXACT = ("parameter", "gradient", "bucket", "optimizer_state")
_TOLERANCE = 0.005
_MASK_BYTES = 256 * 512 * 4


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", _HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _module("cases")
ALONE = [each.metadata.name for each in CASES.ALONE]
REPLICATED = [each.metadata.name for each in CASES.REPLICATED]


@dataclass(frozen=True)
class Run:
    """What one process found out about one job."""

    events: Sequence[Event]
    ddp: dict[str, Any]
    measurement: Measurement | None = None

    @property
    def peak(self) -> int:
        return max(each.peak.requested_bytes for each in phases_of(self.events))

    @property
    def categories(self) -> dict[str, int]:
        # Not the reducer's map of used parameters, of which a CPU has a second one on its host; buckets are larger.
        small = {each.block for each in self.events if isinstance(each, Alloc) and each.requested_bytes < 1024}
        maps = {each.block for each in self.events if isinstance(each, Role) and each.category is Category.BUCKET}
        found = most_by_category([each for each in self.events if getattr(each, "block", None) not in small & maps])
        return {name: found.get(name, 0) for name in _EXACT}


def _start(
    kind: str, folder: Path, jobs: Sequence[Any], rank: int = 0, meeting: str = ""
) -> Callable[[], dict[str, Run]]:
    """A process that runs the jobs; its answer is read by calling what is returned."""
    name = f"{kind}-{rank}-{bool(meeting)}"
    questions, answers = folder / f"{name}.jobs", folder / f"{name}.answers"
    questions.write_bytes(pickle.dumps(list(jobs)))
    command = [sys.executable, str(_HERE / "worker.py"), kind, str(questions), str(answers), str(rank), meeting]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def finish() -> dict[str, Run]:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        found = pickle.loads(answers.read_bytes())
        errors = {name: each["error"] for name, each in found.items() if "error" in each}
        assert not errors, "\n".join(errors.values())
        return {name: Run(each["events"], each["ddp"], each.get("measurement")) for name, each in found.items()}

    return finish


@dataclass(frozen=True)
class Runs:
    paper: dict[str, Run]
    real: dict[str, Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_all(tmp_path_factory.mktemp("runs"))


def run_all(folder: Path) -> Runs:
    """Every job once on paper and once for real; replicated ones as two processes that meet over gloo."""
    paper = _start("paper", folder, [*CASES.ALONE, *CASES.REPLICATED])
    alone = _start("real", folder, CASES.ALONE)
    traced, measured = paper(), alone()
    pair = [_start("real", folder, CASES.REPLICATED, rank, str(folder / "meeting")) for rank in (0, 1)]
    first, _ = [finish() for finish in pair]
    return Runs(traced, {**measured, **first})


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_the_real_run_can_be_believed(runs: Runs, name: str) -> None:
    """Two runs agree, and what was allocated and not freed is what live tensors hold."""
    measurement = runs.real[name].measurement
    assert measurement is not None
    assert measurement.truth is not None
    assert measurement.truth.believed, measurement.truth


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_parameters_gradients_buckets_and_optimizer_state_are_exact(runs: Runs, name: str) -> None:
    assert runs.paper[name].categories == runs.real[name].categories


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_the_peak_is_within_half_a_percent(runs: Runs, name: str) -> None:
    assert runs.paper[name].peak == pytest.approx(runs.real[name].peak, rel=_TOLERANCE)


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_every_phase_peaks_within_half_a_percent_of_the_whole(runs: Runs, name: str) -> None:
    assert _phases_that_differ(runs.paper[name], runs.real[name]) == {}


def _phases_that_differ(paper: Run, real: Run) -> dict[str, int]:
    """By how many bytes the peaks of phases differ, where that is more than half a percent of the whole peak."""
    here, there = phases_of(paper.events), phases_of(real.events)
    assert [(each.phase, each.iteration) for each in here] == [(each.phase, each.iteration) for each in there]
    differences = {
        f"{a.phase} {a.iteration}": a.peak.requested_bytes - b.peak.requested_bytes
        for a, b in zip(here, there, strict=True)
    }
    return {where: by for where, by in differences.items() if abs(by) > _TOLERANCE * real.peak}


@pytest.mark.parametrize("name", REPLICATED)
def test_the_reducer_says_the_same_of_its_buckets(runs: Runs, name: str) -> None:
    said = ("bucket_sizes", "rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices", "has_rebuilt_buckets")
    paper, real = runs.paper[name].ddp, runs.real[name].ddp
    assert {key: paper.get(key) for key in said} == {key: real.get(key) for key in said}


def test_the_rebuild_of_buckets_was_seen(runs: Runs) -> None:
    assert runs.real["ddp-copy"].ddp["has_rebuilt_buckets"] == 1
    assert runs.real["ddp-copy"].ddp["rebuilt_bucket_sizes"] != runs.real["ddp-copy"].ddp["bucket_sizes"]


def test_with_a_view_gradients_are_not_there_twice(runs: Runs) -> None:
    copy, view = runs.real["ddp-copy"].categories, runs.real["ddp-view"].categories
    assert copy["bucket"] == view["bucket"] == copy["gradient"]
    assert runs.real["ddp-view"].peak < runs.real["ddp-copy"].peak


def _without(events: Sequence[Event], dropped: int) -> list[Event]:
    return [each for each in events if getattr(each, "block", None) != dropped]


def _alive_at_peak(events: Sequence[Event]) -> dict[int, Alloc]:
    """The blocks that are alive when the requested bytes are at their highest."""
    alive: dict[int, Alloc] = {}
    best: dict[int, Alloc] = {}
    now = highest = 0
    for event in events:
        if isinstance(event, Alloc):
            alive[event.block] = event
            now += event.requested_bytes
        elif isinstance(event, Free):
            now -= alive.pop(event.block).requested_bytes
        if now > highest:
            highest, best = now, dict(alive)
    return best


def _of_category(events: Sequence[Event], category: Category) -> list[int]:
    return [each.block for each in events if isinstance(each, Role) and each.category is category]


def test_one_bucket_less_is_noticed(runs: Runs) -> None:
    events = runs.paper["ddp-copy"].events
    rebuilt = _of_category(events, Category.BUCKET)[-1]
    mutant = Run(_without(events, rebuilt), {})
    assert _phases_that_differ(mutant, runs.real["ddp-copy"]) != {}


def test_a_reducer_without_its_bucket_is_noticed(runs: Runs) -> None:
    buckets = _of_category(runs.paper["ddp-static"].events, Category.BUCKET)
    events = [each for each in runs.paper["ddp-static"].events if getattr(each, "block", None) not in buckets]
    assert Run(events, {}).categories != runs.real["ddp-static"].categories


def test_one_mask_less_is_noticed(runs: Runs) -> None:
    events = runs.paper["dropouts"].events
    masks = [each.block for each in _alive_at_peak(events).values() if each.requested_bytes == _MASK_BYTES]
    mutant = Run(_without(events, masks[0]), {})
    assert mutant.peak != pytest.approx(runs.real["dropouts"].peak, rel=_TOLERANCE)


def test_one_workspace_less_is_noticed(runs: Runs) -> None:
    """A convolution's columns are the largest block of that step."""
    events = runs.paper["convolutions"].events
    columns = max(_alive_at_peak(events).values(), key=lambda each: each.requested_bytes)
    mutant = Run(_without(events, columns.block), {})
    assert mutant.peak != pytest.approx(runs.real["convolutions"].peak, rel=_TOLERANCE)


def test_marks_are_where_they_were(runs: Runs) -> None:
    for name in ALONE:
        paper = [each for each in runs.paper[name].events if isinstance(each, Mark)]
        assert paper == [each for each in runs.real[name].events if isinstance(each, Mark)]

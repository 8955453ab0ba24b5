"""Measurements as values, as lines, and as files of lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import MeasureError
from planner.events import Phase
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import (
    Levels,
    Measurement,
    OutOfMemory,
    Phases,
    Truth,
    from_json,
    to_json,
)

Build = Callable[..., Measurement]


def test_a_line_gives_the_measurement_back(measurement: Build) -> None:
    out = OutOfMemory(phase=Phase.BACKWARD, iteration=1, message="CUDA out of memory.")
    for each in (measurement(), measurement(out_of_memory=out, truth=None), measurement(operator={"forward": [8, -8]})):
        assert from_json(json.loads(measurement_lines.line(each))) == each


def test_the_peak_is_the_highest_of_all_phases(measurement: Build) -> None:
    assert measurement().peak == Levels(requested_bytes=300, allocated_bytes=300, active_bytes=300, reserved_bytes=400)
    assert to_json(measurement())["peak"]["reserved_bytes"] == 400


def test_a_file_grows_line_by_line(measurement: Build, tmp_path: Path) -> None:
    path = tmp_path / "new" / "measurements.jsonl"
    measurement_lines.append(path, [measurement(case="one")])
    measurement_lines.append(path, [measurement(case="two"), measurement(case="three")])
    assert [each.case for each in measurement_lines.read(path)] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "planner.plan/1"}', ":2 schema: a document of schema 'planner.plan/1' is not a measurement"),
        ("{", ":2: this line must be a JSON object"),
        ("7", ":2: this line must be a JSON object"),
        ('{"schema": "planner.measurement/1"}', ":2 measurement: case is missing"),
    ],
)
def test_a_line_that_is_none_is_named(measurement: Build, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_text(measurement_lines.line(measurement()) + "\n" + text + "\n")
    with pytest.raises(MeasureError) as error:
        measurement_lines.read(path)
    assert said in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="cannot be read"):
        measurement_lines.read(tmp_path / "none.jsonl")


def test_a_file_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement_lines, "MOST_BYTES", 2**20)
    with pytest.raises(MeasureError, match="/dev/zero is larger than 1 MiB"):
        measurement_lines.read(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rank", "0", "measurement.rank: '0' is of a wrong type"),
        ("rank", True, "measurement.rank: True is of a wrong type"),
        ("seconds", float("inf"), "measurement.seconds: the number is too large"),
        ("world_size", 2**63, "measurement.world_size: the number is too large"),
        ("phases", [{"phase": "eval"}], "measurement.phases[0]: iteration is missing"),
        ("memory_stats", {"peak": []}, "measurement.memory_stats.peak: a list is of"),
        ("command", [["python"]], "measurement.command[0]: a list is of a wrong type"),
    ],
)
def test_a_value_of_another_type_is_named(measurement: Build, name: str, value: object, said: str) -> None:
    with pytest.raises(MeasureError) as error:
        from_json({**to_json(measurement()), name: value})
    assert str(error.value).startswith(said)


def test_micro_batches_of_an_iteration_are_one_phase() -> None:
    phases = Phases()
    phases.add(Phase.FORWARD, 1, Levels(requested_bytes=5), Levels(requested_bytes=4), device_bytes=70)
    phases.add(Phase.BACKWARD, 1, Levels(requested_bytes=9), Levels(requested_bytes=1))
    phases.add(Phase.FORWARD, 1, Levels(requested_bytes=3), Levels(requested_bytes=2), device_bytes=60)
    forward, backward = phases.all()
    assert (forward.peak.requested_bytes, forward.end.requested_bytes, forward.device_bytes) == (5, 2, 70)
    assert (backward.phase, backward.peak.requested_bytes) == (Phase.BACKWARD, 9)


@pytest.mark.parametrize(
    ("truth", "believed"),
    [
        (Truth(runs=2, agreeing=2, net_bytes=5000, live_bytes=5000), True),
        (Truth(runs=3, agreeing=1, net_bytes=5000, live_bytes=5000), False),
        (Truth(runs=2, agreeing=2, net_bytes=9000, live_bytes=5000), False),
        (Truth(runs=2, agreeing=2, net_bytes=4999, live_bytes=5000), False),
    ],
)
def test_a_cpu_run_is_believed_when_runs_agree_and_live_tensors_account_for_it(truth: Truth, believed: bool) -> None:
    assert truth.believed is believed

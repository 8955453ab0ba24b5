"""`planner replay`: a recorded snapshot, or what is wrong with the file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from planner import cli
from planner.events import Alloc, Free
from planner.report.memory_viz import write_snapshot
from planner.units import MIB

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "two-blocks.pickle"
    write_snapshot(path, [Alloc(0, 30 * MIB), Alloc(1, 3 * MIB), Free(0), Alloc(2, 24 * MIB)])
    return path


def test_a_snapshot_is_replayed_address_by_address(snapshot: Path, capsys: Shown) -> None:
    assert cli.main(["replay", str(snapshot)]) == 0

    said = "Every address and every segment is the recorded one: 3 allocations and 2 segments were replayed."
    assert _unwrapped(capsys.readouterr().out).endswith(said)


def test_what_was_there_before_the_recording_is_told_from_what_was_replayed(snapshot: Path, capsys: Shown) -> None:
    """A history that holds its last entry alone, as `max_entries=1` records it."""
    content = pickle.loads(snapshot.read_bytes())
    content["device_traces"] = [[entry for entry in content["device_traces"][0] if entry["action"] == "alloc"][-1:]]
    snapshot.write_bytes(pickle.dumps(content))

    assert cli.main(["replay", str(snapshot)]) == 0

    said = capsys.readouterr().out
    assert "  held before       1 block, 3.00 MiB: not replayed\n" in said
    assert _unwrapped(said).endswith(
        "Every address and every segment is the recorded one: 1 allocation and 0 segments were replayed."
    )


def _unwrapped(said: str) -> str:
    """The lines of a paragraph are as wide as the terminal."""
    return " ".join(said.split())


def test_a_list_of_segments_without_a_history_says_how_to_record_one(snapshot: Path, capsys: Shown) -> None:
    """What `torch.cuda.memory_snapshot()` returns."""
    snapshot.write_bytes(pickle.dumps(pickle.loads(snapshot.read_bytes())["segments"]))

    assert cli.main(["replay", str(snapshot)]) == 2

    said = " ".join(capsys.readouterr().err.split())
    assert "the snapshot holds no trace" in said
    assert "call torch.cuda.memory._record_memory_history() before the step that is to be recorded" in said
    assert cli.main(["explain", str(snapshot)]) == 0
    assert (
        "device 0: the state in the snapshot\n  allocated                         0.03 GiB\n" in capsys.readouterr().out
    )


def test_as_json_it_is_one_object_of_the_contract(snapshot: Path, capsys: Shown) -> None:
    assert cli.main(["replay", str(snapshot), "--format", "json"]) == 0

    assert json.loads(capsys.readouterr().out) == {
        "schema": "planner.replay/1",
        "devices": [
            {
                "device": 0,
                "events": 4,
                "addresses": {"matched": 3, "total": 3},
                "segments": {"matched": 2, "total": 2},
                "blocks_before": 0,
                "bytes_before": 0,
                "peak_allocated_bytes": 33 * MIB,
                "peak_reserved_bytes": 50 * MIB,
                "first_difference": None,
            }
        ],
    }


def test_another_setting_is_tried_on_a_device_of_a_given_size(snapshot: Path, capsys: Shown) -> None:
    asked = ["--conf", "expandable_segments:True", "--capacity", "1GiB", "--format", "json"]
    assert cli.main(["replay", str(snapshot), *asked]) == 0

    what_if = json.loads(capsys.readouterr().out)["devices"][0]["what_if"]
    assert (what_if["peak_reserved_bytes"], what_if["out_of_memory"]) == (40 * MIB, False)


def test_a_device_that_is_too_small_for_it_is_said(snapshot: Path, capsys: Shown) -> None:
    asked = ["--conf", "expandable_segments:True", "--capacity", "20MiB", "--format", "json"]
    assert cli.main(["replay", str(snapshot), *asked]) == 0

    assert json.loads(capsys.readouterr().out)["devices"][0]["what_if"]["out_of_memory"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--capacity", "much"], "--capacity: 'much' is not a size"),
        (["--conf", "backend:cudaMallocAsync"], "backend"),
    ],
)
def test_a_wrong_option_is_said_and_ends_with_2(snapshot: Path, arguments: list[str], said: str, capsys: Shown) -> None:
    assert cli.main(["replay", str(snapshot), *arguments]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err


def test_a_pickle_that_would_run_something_is_refused_unrun(tmp_path: Path, capsys: Shown) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "was-here"),)

    path = tmp_path / "harmful.pickle"
    path.write_bytes(pickle.dumps(Harmful()))

    assert cli.main(["replay", str(path)]) == 2
    assert not (tmp_path / "was-here").exists()
    assert capsys.readouterr().out == ""

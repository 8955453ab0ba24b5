"""The folder that comes back: few files of limited size, whole whenever the run is cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_truth.results import Results, measurement_files, read_snapshots

LINE = json.dumps({"case": "mlp", "error": ""}) + "\n"


def lines(*names: str, error: str = "") -> str:
    return "".join(json.dumps({"case": name, "error": error}) + "\n" for name in names)


def test_what_was_measured_is_there_for_the_next_run(tmp_path: Path) -> None:
    first = Results(tmp_path)
    first.append(lines("operator-a", "operators"))
    first.append(lines("mlp", error="no kernel"))

    assert Results(tmp_path).finished() == {"operator-a", "operators"}


@given(at=st.integers(0, 10_000))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_off_within_a_line_the_lines_before_it_stay(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    folder = tmp_path_factory.mktemp("results")
    Results(folder).append(lines("a", "b", "c"))
    (path,) = measurement_files(folder)
    whole = path.read_bytes()
    cut = at % (len(whole) + 1)
    path.write_bytes(whole[:cut])

    again = Results(folder)
    kept = whole[:cut].count(b"\n")
    assert [each["case"] for each in again.documents()] == ["a", "b", "c"][:kept]
    again.append(lines("d"))
    assert [each["case"] for each in again.documents()] == [*["a", "b", "c"][:kept], "d"]


def test_no_file_grows_beyond_the_limit_and_there_are_no_more_than_eight(tmp_path: Path) -> None:
    most = 2**19 + 10 * len(LINE)  # half a MiB is left free in each
    results = Results(tmp_path, file_bytes=most)
    for _ in range(80):
        results.append(LINE)
    loose = tmp_path.parent / "loose"
    loose.mkdir()
    (loose / "mlp.pickle.xz").write_bytes(b"history")
    results.keep_snapshots(loose)

    files = sorted(each.name for each in tmp_path.iterdir())
    more = [f"measurements-{number}.jsonl" for number in range(2, 8)]
    assert files == [*more, "measurements.jsonl", "snapshots.tar"]
    assert [each.stat().st_size for each in measurement_files(tmp_path)] == [10 * len(LINE)] * 7
    assert results.dropped == 10


def test_histories_of_several_runs_are_kept_the_smallest_first(tmp_path: Path) -> None:
    sizes = {"a": 3 * 2**20, "b": 10, "c": 4 * 2**20}
    for name, size in sizes.items():
        loose = tmp_path / name
        loose.mkdir()
        (loose / f"{name}.pickle.xz").write_bytes(name.encode() * size)
        Results(tmp_path / "out").keep_snapshots(loose)

    kept = read_snapshots(tmp_path / "out")
    assert {name: len(content) for name, content in kept.items()} == {"b.pickle.xz": 10, "a.pickle.xz": 3 * 2**20}

"""Files that are not snapshots: refused with a reason, and nothing in them is executed."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.rules import Rules
from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import verify
from planner.errors import AllocatorConfError, SnapshotError
from planner.events import Alloc, Free
from planner.units import MIB

GOOD = [Alloc(0, 5000), Alloc(1, 5 << 20), Free(0)]
SEGMENT = {
    "device": 0, "address": 2 * MIB, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
    "blocks": [{"size": 2 * MIB, "requested_size": 0, "state": "inactive"}],
}  # fmt: skip


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def problem(path: Path) -> str:
    with pytest.raises(SnapshotError) as refusal:
        read_snapshot(path)
    return refusal.value.problem


def test_a_pickle_that_calls_something_is_refused_and_nothing_is_executed(tmp_path: Path) -> None:
    path, trap = tmp_path / "attack.pickle", tmp_path / "trap"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Attack(trap)]}))

    assert problem(path) == f"not plain data: it asks for {os.mkdir.__module__}.mkdir; nothing was executed"
    assert not trap.exists()


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.pickle"
    path.touch()

    assert problem(path) == "the file is empty"


def test_a_missing_file(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.pickle") == "cannot be read: No such file or directory"


def test_every_truncation_is_refused(tmp_path: Path, recorded: Callable[..., dict[str, Any]]) -> None:
    path = tmp_path / "cut.pickle"
    whole = pickle.dumps(recorded(GOOD), protocol=2)
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])

        with pytest.raises(SnapshotError):
            read_snapshot(path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_compressed_snapshots_are_read_and_truncated_ones_refused(
    compress: Callable[[bytes], bytes], tmp_path: Path, recorded: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "snapshot"
    whole = compress(pickle.dumps(recorded(GOOD)))
    path.write_bytes(whole)
    assert verify(read_snapshot(path)).exact

    path.write_bytes(whole[: len(whole) // 2])

    assert problem(path) == "the compressed file is truncated or damaged"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text", "not a snapshot of CUDA memory: what it holds is of type str"),
        (None, "not a snapshot of CUDA memory: what it holds is of type NoneType"),
        ([1, 2], "not a snapshot of CUDA memory: a segment is of type int"),
        ({"segments": []}, "not a snapshot of CUDA memory: there is no 'device_traces'"),
        ({"segments": [7], "device_traces": []}, "not a snapshot of CUDA memory: a segment is of type int"),
        ({"segments": [], "device_traces": [["alloc"]]}, "not a snapshot of CUDA memory: an entry is of type str"),
        (
            {"segments": [{**SEGMENT, "blocks": [None]}], "device_traces": []},
            "not a snapshot of CUDA memory: a block is of type NoneType",
        ),
        (
            {"segments": [], "device_traces": [], "allocator_settings": "expandable_segments:True"},
            "not a snapshot of CUDA memory: allocator_settings is of type str",
        ),
        (
            {"segments": [], "device_traces": [[{"action": "alloc"}]]},
            "not a snapshot of CUDA memory: there is no 'size'",
        ),
        ([SEGMENT], "the snapshot holds no trace"),
        ({"segments": [], "device_traces": [[], []]}, "the snapshot holds no trace, and no segment"),
        ({"segments": [SEGMENT], "device_traces": [[]]}, "the snapshot holds no trace"),
    ],
    ids=[
        "text",
        "nothing",
        "numbers",
        "without traces",
        "a segment",
        "an entry",
        "a block",
        "settings",
        "without sizes",
        "memory_snapshot()",
        "nothing recorded",
        "no history",
    ],
)
def test_plain_data_of_another_kind(content: object, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "other.pickle"
    path.write_bytes(pickle.dumps(content))

    assert problem(path) == expected


def test_text_is_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")

    assert problem(path).startswith("not a pickle")


def test_a_trace_that_contradicts_its_segments(tmp_path: Path, recorded: Callable[..., dict[str, Any]]) -> None:
    path = tmp_path / "snapshot.pickle"
    content = recorded(GOOD)
    content["segments"].pop()
    path.write_bytes(pickle.dumps(content))

    with pytest.raises(SnapshotError, match="contradicts the segments"):
        verify(read_snapshot(path))


def test_an_action_that_is_not_known(tmp_path: Path, recorded: Callable[..., dict[str, Any]]) -> None:
    path = tmp_path / "snapshot.pickle"
    content = recorded(GOOD)
    content["device_traces"][0].append({"action": "teleport", "addr": 0, "size": 1, "stream": 0})
    path.write_bytes(pickle.dumps(content))

    with pytest.raises(SnapshotError, match="'teleport'"):
        verify(read_snapshot(path))


def test_private_pools_are_not_modelled(tmp_path: Path, recorded: Callable[..., dict[str, Any]]) -> None:
    path = tmp_path / "snapshot.pickle"
    content = recorded(GOOD)
    content["segments"][0]["segment_pool_id"] = (0, 1)
    path.write_bytes(pickle.dumps(content))

    with pytest.raises(SnapshotError, match="private memory pools"):
        verify(read_snapshot(path))


@pytest.mark.parametrize(
    "value",
    [math.inf, math.nan, -1, 1.5, True, "512", 2**48 + 1, pytest.param(10**6000, id="of 6,001 digits"), None],
)
def test_a_number_that_no_gpu_has_is_refused(
    value: object, tmp_path: Path, recorded: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "snapshot.pickle"
    for change in (
        lambda content: content["device_traces"][0][0].update(size=value),
        lambda content: content["segments"][0].update(total_size=value),
        lambda content: content["segments"][0]["blocks"][0].update(size=value),
    ):
        content = recorded(GOOD)
        change(content)
        path.write_bytes(pickle.dumps(content))

        assert problem(path).startswith("not a snapshot of CUDA memory: ")


def test_what_may_never_end_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for path in (Path("/dev/zero"), Path("/dev/null"), pipe):
        assert problem(path) == "it is a device or a pipe, which may never end"


@pytest.mark.parametrize("conf", ["large_segment_size_mb:4194305", "large_segment_size_mb:9999999999"])
def test_segments_larger_than_any_gpu_are_refused(conf: str) -> None:
    with pytest.raises(AllocatorConfError, match="is too large\n  allowed: up to 4194304"):
        Rules.from_conf(conf)


def test_numbers_beyond_those_of_upstream_are_refused_and_others_cut_as_there() -> None:
    assert Rules.from_conf(f"max_split_size_mb:{2**64 - 1}").max_split_bytes == (2**44 - 1) * MIB
    for number in (str(2**64), "9" * 5_000):
        with pytest.raises(AllocatorConfError, match="is too large"):
            Rules.from_conf(f"max_split_size_mb:{number}")

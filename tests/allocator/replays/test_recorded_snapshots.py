"""Recorded snapshots of real GPUs: every address and every segment decision is replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import MatchCount, verify

NAMES = (
    "federated-zeroth-order", "llama-two-streams", "lm-oom-sized-forward", "lm24-infer-ctx256", "lm24-train-ctx128",
    "lm24-train-ctx512", "lm32-forward-ctx256-autocast", "lm32-fullstep-ctx128", "lm32-fullstep-ctx256",
    "lm4-forward-ctx100-fp32", "lm4-forward-ctx200-fp32", "lm4-train-ctx100-fp32", "lm4-train-ctx200-autocast",
    "lm4-train-ctx200-fp32", "octree-nca-infer", "octree-nca-train",
)  # fmt: skip


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads((folder / "manifest.json").read_text())}


def test_no_recorded_snapshot_is_left_out(recorded_snapshots: Path) -> None:
    assert sorted(path.name.split(".")[0] for path in recorded_snapshots.glob("*.pickle.xz")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_address_and_every_segment_is_replayed(name: str, recorded_snapshots: Path) -> None:
    known = manifest(recorded_snapshots)[name]
    actions = known["actions"]
    segments = actions.get("segment_alloc", 0) + actions.get("segment_free", 0)

    (device,) = verify(read_snapshot(recorded_snapshots / f"{name}.pickle.xz")).devices

    assert device.first_difference is None
    assert device.addresses == MatchCount(actions["alloc"], actions["alloc"])
    assert device.segments == MatchCount(segments, segments)
    assert device.peak_reserved_bytes == known["peak_reserved_in_trace_bytes"]


@pytest.mark.parametrize("conf", ["large_segment_size_mb:22", "roundup_power2_divisions:8", "expandable_segments:True"])
def test_a_replay_under_the_wrong_rules_is_found_out(conf: str, recorded_snapshots: Path) -> None:
    snapshot = read_snapshot(recorded_snapshots / "lm4-train-ctx100-fp32.pickle.xz")

    (device,) = verify(replace(snapshot, conf=conf)).devices

    assert device.first_difference is not None
    assert device.addresses.matched < device.addresses.total
    assert device.segments.matched < device.segments.total


def test_another_conf_is_replayed_from_the_same_events(recorded_snapshots: Path) -> None:
    path = recorded_snapshots / "lm4-train-ctx200-autocast.pickle.xz"

    (device,) = verify(read_snapshot(path), "expandable_segments:True").devices

    assert device.what_if is not None
    assert device.what_if.exact
    assert device.what_if.peak_allocated_bytes <= device.what_if.peak_reserved_bytes < device.peak_reserved_bytes


def test_the_report_keeps_its_contract(recorded_snapshots: Path) -> None:
    report = verify(read_snapshot(recorded_snapshots / "lm4-forward-ctx100-fp32.pickle.xz"))

    assert report.to_json() == {
        "schema": "planner.replay/1",
        "devices": [
            {
                "device": 0,
                "events": 1529,
                "addresses": {"matched": 785, "total": 785},
                "segments": {"matched": 31, "total": 31},
                "blocks_before": 0,
                "bytes_before": 0,
                "peak_allocated_bytes": 416297472,
                "peak_reserved_bytes": 463470592,
                "first_difference": None,
            }
        ],
    }

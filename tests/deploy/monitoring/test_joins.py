"""Predictions meet what GPUs show: the deployed rules in a real Prometheus that scrapes the real interface."""

from __future__ import annotations

from typing import Any

from planner.units import GIB

PREDICTED = {"GPU-a": 40 * GIB + 1, "GPU-b": 40 * GIB + 1, "GPU-c": 39 * GIB + 1, "GPU-d": 39 * GIB + 1}
USED = {"GPU-a": 41 * GIB, "GPU-b": 39 * GIB, "GPU-c": 38 * GIB, "GPU-d": 37 * GIB}


def test_mebibytes_of_either_exporter_become_bytes(prometheus: Any) -> None:
    found = prometheus.figures("gpu_uuid:gpu_memory_used:bytes", "gpu_uuid")

    assert found == {(uuid,): used for uuid, used in {**USED, "GPU-z": 100 * 1024**2}.items()}


def test_every_rank_has_its_prediction_over_what_it_took(prometheus: Any) -> None:
    found = prometheus.figures("job_gpu:planner_predicted_over_actual:ratio", "gpu_uuid", "system", "job_id")

    assert found == {(uuid, "slurm", "4711"): PREDICTED[uuid] / USED[uuid] for uuid in USED}


def test_what_ranks_told_is_believed_before_their_gpus(prometheus: Any) -> None:
    found = prometheus.figures("job_rank_class:planner_predicted_over_actual:ratio", "rank_class")

    assert found == {("0",): (40 * GIB + 1) / (39 * GIB), ("2",): (39 * GIB + 1) / (38 * GIB)}


def test_a_gpu_above_its_prediction_is_found(prometheus: Any) -> None:
    assert prometheus.figures("job_gpu:planner_above_prediction:bytes", "gpu_uuid") == {("GPU-a",): GIB - 1}
    assert prometheus.figures("planner:jobs_above_prediction:count") == {(): 0}  # what its ranks told is not


def test_memory_that_nobody_touched_by_type_of_gpu(prometheus: Any) -> None:
    wasted = sum(80 * GIB - used for used in USED.values())

    assert prometheus.figures("gpu:planner_headroom_wasted:bytes", "gpu") == {("H100-SXM-80GB",): wasted}
    assert prometheus.figures("team_queue_gpu:planner_headroom_wasted:bytes", "team", "queue") == {("nlp", "q"): wasted}


def test_how_often_the_interval_was_right(prometheus: Any) -> None:
    """Both ranks told a GiB and one byte less than was predicted: just below the interval of one GiB."""
    assert prometheus.figures("gpu:planner_interval_coverage:ratio", "gpu") == {("H100-SXM-80GB",): 0}
    assert prometheus.figures("gpu:planner_rank_classes_below_interval:ratio", "gpu") == {("H100-SXM-80GB",): 1}


def test_no_rule_fails_in_it(prometheus: Any) -> None:
    assert prometheus.ask("sum(prometheus_rule_evaluation_failures_total) > 0") == []
    groups = prometheus.rules()
    assert [(rule["name"], rule["lastError"]) for rule in groups if rule["health"] != "ok"] == []

"""What vLLM's logs say of weights, blocks and the rest, beside planner's arithmetic (tests/data/engine_logs.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner.paper  # noqa: F401  # before torch
from planner.job import hf_config
from planner.job.schema import Model
from planner.tracing.rollout import kv_blocks, weights_in_allocator
from planner.tracing.rollout_engine import KvShape, find_kv_shape
from planner.units import GIB

LOGS = json.loads((Path(__file__).parents[2] / "data" / "engine_logs.json").read_text(encoding="utf-8"))
BLOCK = 16
_ACTIVATIONS_TOLERANCE = 0.125
"""Of the profile run: vLLM's kernels are fused otherwise than those of the model that is traced."""
_WEIGHTS_TOLERANCE = 0.0005
"""Of the weights: the logs have two to four decimals."""


def _name(log: dict[str, Any]) -> str:
    return f"{log['source']}-tp{log.get('tensor_parallel', 1)}"


def _model(log: dict[str, Any]) -> Model:
    known = hf_config.by_name(log["model"])
    assert known is not None
    return Model(hf_config={**known.config, **log.get("config", {})})


def _token_bytes(log: dict[str, Any]) -> int:
    if "shape" in log:
        return KvShape(**log["shape"]).bytes_per_token(log["tensor_parallel"], "bfloat16")
    shape = find_kv_shape(_model(log))
    layers = log.get("layers", shape.layers)
    return shape.bytes_per_token(log["tensor_parallel"], "bfloat16") * layers // shape.layers


def _counted(log: dict[str, Any]) -> bool:
    return bool({"blocks", "tokens"} & log.keys()) and log["kv_cache_gib"] > 0


@pytest.mark.parametrize("log", [each for each in LOGS if "weights_gib" in each], ids=_name)
def test_the_weights_are_those_of_the_log(log: dict[str, Any]) -> None:
    from planner.tracing.rollout_engine import engine_tensor_bytes

    model = _model(log)
    sizes = engine_tensor_bytes(model, "bfloat16", log["tensor_parallel"], find_kv_shape(model).kv_heads)

    assert weights_in_allocator(tuple(sizes))[0] / GIB == pytest.approx(log["weights_gib"], rel=_WEIGHTS_TOLERANCE)


@pytest.mark.parametrize("log", [each for each in LOGS if "max_num_batched_tokens" in each], ids=_name)
def test_the_profile_runs_activations_are_near_those_of_the_log(log: dict[str, Any]) -> None:
    from planner.job.loading import load_document
    from planner.tracing.rollout_engine import engine_figures

    tokens, ranks = log["max_num_batched_tokens"], log["tensor_parallel"]
    rollout = {"tensor_parallel": ranks, "max_model_len": tokens}
    rollout |= {key: log[key] for key in ("max_num_batched_tokens", "max_num_seqs")}
    job = load_document(
        {
            "model": {"hf_config": dict(_model(log).hf_config or {})},
            "train": {"sequence_length": 128},
            "post_training": {"rollout": rollout},
            "parallel": {"dp_shard": ranks},
            "cluster": {"gpus_per_node": ranks, "gpu": "H100"},
        }
    )

    found = engine_figures(job).activation_bytes / GIB

    assert found == pytest.approx(log["activation_gib"], rel=_ACTIVATIONS_TOLERANCE)


@pytest.mark.parametrize("log", [each for each in LOGS if _counted(each)], ids=_name)
def test_as_many_blocks_fit_as_the_log_says(log: dict[str, Any]) -> None:
    """Between the least and the most that the log's two decimals may mean (of keys and values apart, twice that)."""
    half = 0.005 * log.get("figures", 1)
    block_bytes = _token_bytes(log) * BLOCK
    blocks = log.get("blocks") or log["tokens"] // BLOCK
    least, most = (kv_blocks(int((log["kv_cache_gib"] + each) * GIB), block_bytes, 1) for each in (-half, half))

    assert least <= blocks <= most


@pytest.mark.parametrize("log", [each for each in LOGS if "share_gib" in each and "kv_cache_gib" in each], ids=_name)
def test_the_kv_cache_is_what_the_rest_leaves_of_the_share(log: dict[str, Any]) -> None:
    weights = log.get("weights_gib") or log["reported_weights_gib"]

    assert log["total_gib"] * log["utilization"] == pytest.approx(log["share_gib"], abs=0.011)
    assert log["share_gib"] - weights - log["non_torch_gib"] - log["activation_gib"] == pytest.approx(
        log["kv_cache_gib"], abs=0.021
    )


def test_a_negative_rest_is_no_block() -> None:
    assert kv_blocks(round(-1.05 * GIB), 57_344, BLOCK) == 0


def test_sleep_gives_back_the_weights_and_the_cache() -> None:
    (log,) = (each for each in LOGS if "sleep_freed_gib" in each)

    assert log["sleep_freed_gib"] == pytest.approx(log["reported_weights_gib"] + log["kv_cache_gib"], rel=0.01)

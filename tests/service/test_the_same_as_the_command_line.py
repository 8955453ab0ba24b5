"""A warm worker that has planned other jobs gives, byte for byte, the plans of command lines that were started anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from planner.job.loading import load_job
from planner.report.statement import to_json
from planner.runtime.limits import Limits
from planner.service.orders import WorkerResult, build_order
from planner.service.scheduling.tracing_worker import TracingWorker
from planner.tracing.isolated import Isolation
from planner.truth.calibration.interval import Calibration

DECODER = {"decoder": {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip
RESNET = {
    "model_type": "resnet", "architectures": ["ResNetForImageClassification"], "num_labels": 10,
    "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
}  # fmt: skip
IMAGES = {"micro_batch_size": 2, "inputs": {"pixel_values": {"shape": [3, 32, 32], "dtype": "float32"}}}
TOKENS = {"micro_batch_size": 2, "sequence_length": 32}


def spec(model: Mapping[str, Any], gpus: int = 1, train: Mapping[str, Any] = TOKENS, **sections: Any) -> dict[str, Any]:
    cluster = {"nodes": 1, "gpus_per_node": gpus, "gpu": "H100-SXM-80GB"}
    return {"model": dict(model), "train": dict(train), "cluster": cluster, **sections}


SPECS: dict[str, dict[str, Any]] = {
    "decoder, ddp": spec(DECODER, 8, parallel={"dp_replicate": 8}),
    "llama, fsdp": spec({"hf_config": LLAMA}, 2, parallel={"dp_shard": 2}),
    "resnet": spec({"hf_config": RESNET}, train=IMAGES),
}


def test_a_warm_worker_plans_as_a_fresh_command_line_does(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{number}.json" for number, name in enumerate(SPECS)}
    for name, file in files.items():
        file.write_text(json.dumps({"metadata": {"name": name}, **SPECS[name]}))
    worker = TracingWorker(Limits(), Isolation())

    warm = [(name, planned_by(worker, number, files[name])) for number, name in enumerate([*SPECS, next(iter(SPECS))])]
    with ThreadPoolExecutor(2) as pool:
        fresh = dict(zip(SPECS, pool.map(planned_by_command_line, files.values()), strict=True))

    assert {name for name, text in warm if text != fresh[name]} == set()
    worker.close()


def planned_by(worker: TracingWorker, number: int, file: Path) -> str:
    found = worker.plan(number + 1, build_order(load_job(file), Calibration.none(), b"key"), 300.0)
    assert isinstance(found, WorkerResult), found
    assert found.plan is not None, found
    return without_seconds(to_json(found.plan))


def planned_by_command_line(file: Path) -> str:
    command = [sys.executable, "-m", "planner", "plan", str(file), "--format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 3), ended.stderr
    return without_seconds(json.loads(ended.stdout))


def without_seconds(document: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in document.items() if key != "seconds"})

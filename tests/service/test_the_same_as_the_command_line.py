"""A warm worker that has planned many jobs gives, byte for byte, the plans of command lines that were started anew.

`PLANNER_SPECS=24` takes all specs; by default some of them are drawn.
"""

from __future__ import annotations

import json
import os
import random
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
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
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
    "decoder": spec(DECODER),
    "decoder in bf16": spec(DECODER, train={**TOKENS, "precision": "bf16_autocast"}),
    "decoder, recomputed": spec(DECODER, train={**TOKENS, "recompute": "full"}),
    "decoder, accumulating": spec(DECODER, train={**TOKENS, "gradient_accumulation_steps": 4}),
    "decoder, sgd": spec(DECODER, train={**TOKENS, "optimizer": {"name": "SGD", "momentum": 0.9}}),
    "decoder, clipped": spec(DECODER, train={**TOKENS, "gradient_clipping": 1.0}),
    "decoder, evaluated": spec(DECODER, train={**TOKENS, "eval": {"micro_batch_size": 4, "every": 2}}),
    "decoder, loaded": spec(DECODER, train={**TOKENS, "checkpoint_load": {"map_location": "device"}}),
    "decoder, expandable": spec(DECODER, allocator={"conf": "expandable_segments:True"}),
    "decoder, ddp": spec(DECODER, 8, parallel={"dp_replicate": 8}),
    "decoder, fsdp": spec(DECODER, 4, parallel={"dp_shard": 4}),
    "decoder, hsdp": spec(DECODER, 8, parallel={"dp_replicate": 2, "dp_shard": 4}),
    "decoder, uneven shards": spec(DECODER, 3, parallel={"dp_shard": 3}),
    "decoder, tp": spec(DECODER, 2, parallel={"tp": 2}),
    "decoder, pp": spec(DECODER, 2, train={**TOKENS, "gradient_accumulation_steps": 4}, parallel={"pp": {"degree": 2}}),
    "llama": spec({"hf_config": LLAMA}),
    "llama, ddp": spec({"hf_config": LLAMA}, 2, parallel={"dp_replicate": {"degree": 2, "static_graph": True}}),
    "llama, fsdp": spec({"hf_config": LLAMA}, 2, parallel={"dp_shard": 2}),
    "llama, tp": spec({"hf_config": LLAMA}, 2, parallel={"tp": 2}),
    "llama, lora": spec({"hf_config": LLAMA, "adapter": {"kind": "lora", "r": 4}}),
    "bert": spec({"hf_config": BERT}),
    "mixtral": spec({"hf_config": MIXTRAL}),
    "resnet": spec({"hf_config": RESNET}, train=IMAGES),
    "resnet, ddp": spec({"hf_config": RESNET}, 2, train=IMAGES, parallel={"dp_replicate": 2}),
}


def test_a_warm_worker_plans_as_a_fresh_command_line_does(tmp_path: Path) -> None:
    seed = int(os.environ.get("PLANNER_SEED", "0"))
    chance = random.Random(seed)
    names = chance.sample(sorted(SPECS), int(os.environ.get("PLANNER_SPECS", "3")))
    files = {name: tmp_path / f"{number}.json" for number, name in enumerate(names)}
    for name, file in files.items():
        file.write_text(json.dumps({"metadata": {"name": name}, **SPECS[name]}))
    worker = TracingWorker(Limits(), Isolation())

    warm = [
        (name, planned_by(worker, number, files[name])) for number, name in enumerate(shuffled_twice(names, chance))
    ]
    with ThreadPoolExecutor(2) as pool:
        fresh = dict(zip(names, pool.map(planned_by_command_line, files.values()), strict=True))

    assert {name for name, text in warm if text != fresh[name]} == set()
    worker.close()


def shuffled_twice(names: list[str], chance: random.Random) -> list[str]:
    return chance.sample(names, len(names)) + chance.sample(names, len(names))


def planned_by(worker: TracingWorker, number: int, file: Path) -> str:
    found = worker.plan(number + 1, build_order(load_job(file), Calibration.none()), 300.0)
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

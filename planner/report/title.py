"""What a job is called in one line: its model, its step, its layout, its GPUs. Read from the bundle in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.style import Style


def name_of(job: Mapping[str, Any]) -> str:
    return str(_part(job, "metadata").get("name") or "unnamed job")


def gpu_of(job: Mapping[str, Any]) -> str:
    gpu = _part(job, "cluster").get("gpu")
    if isinstance(gpu, Mapping):
        return str(gpu.get("name") or gpu.get("arch") or "GPU")
    return str(gpu or "GPU")


def describe(job: Mapping[str, Any], style: Style) -> list[str]:
    """Model, step, layout and GPUs."""
    cluster = _part(job, "cluster")
    nodes, per_node = cluster.get("nodes", 1), cluster.get("gpus_per_node", 1)
    gpus = f"{gpu_of(job)}" if nodes * per_node == 1 else f"{nodes * per_node} {style.times} {gpu_of(job)}"
    if nodes > 1:
        gpus += f" on {nodes} nodes"
    return [each for each in (_model(job, style), _step(job, style), _layout(job), gpus) if each]


def _model(job: Mapping[str, Any], style: Style) -> str:
    model = _part(job, "model")
    config, decoder = _part(model, "hf_config"), _part(model, "decoder")
    if config:
        names = config.get("architectures") or [config.get("model_type") or "transformers model"]
        return str(names[0])
    if decoder:
        return f"decoder {decoder.get('layers')} {style.times} {decoder.get('hidden')}"
    return str(model.get("factory") or "")


def _step(job: Mapping[str, Any], style: Style) -> str:
    train = _part(job, "train")
    batch, length = train.get("micro_batch_size", 1), train.get("sequence_length") or 0
    text = f"micro-batch {batch}" + (f" {style.times} {length}" if length else "")
    precision = train.get("precision", "none")
    return text if precision == "none" else f"{text}, {precision}"


def _layout(job: Mapping[str, Any]) -> str:
    parallel = _part(job, "parallel")
    axes = []
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"):
        value = parallel.get(axis, 1)
        degree = value.get("degree", 1) if isinstance(value, Mapping) else value
        if degree != 1:
            axes.append(f"{axis} {degree}{_kind(parallel, axis, value)}")
    return ", ".join(axes) or "one process"


def _kind(parallel: Mapping[str, Any], axis: str, value: Any) -> str:
    if not isinstance(value, Mapping) or not value.get("kind"):
        return ""
    # Replicas of shards are fully_shard's own (HSDP): there is no DDP.
    sharded = _part(parallel, "dp_shard").get("degree", 1) != 1
    return "" if axis == "dp_replicate" and sharded else f" ({value['kind']})"


def _part(job: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = job.get(key)
    return value if isinstance(value, Mapping) else {}

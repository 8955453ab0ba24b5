"""For each reader of tests/fakes/input_readers.py something that it reads: what hostile inputs are made from."""

from __future__ import annotations

import json
import pickle
from typing import Any

from hostile_documents import DECODER, REPORT, SPEC, TRAINER, VALIDATION
from torch_messages import alloc_conf

from planner.events import Alloc, Phase
from planner.report import memory_viz
from planner.truth.calibration import interval as calibrations
from planner.truth.calibration.interval import Calibration
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import (
    DeviceFacts,
    Levels,
    MeasuredPhase,
    Measurement,
    OutOfMemory,
    Truth,
)
from planner.units import MIB

TEMPLATE = {
    "metadata": {"annotations": {"planner.dev/bundle": json.dumps(DECODER)}},
    "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
        "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    },
}
REVIEW: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u", "operation": "CREATE", "namespace": "nlp", "kind": {"kind": "JobSet"}, "dryRun": False,
        "object": {
            "kind": "JobSet",
            "metadata": {"name": "sft", "uid": "1", "annotations": {"planner.dev/bundle": json.dumps(SPEC)}},
            "spec": {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"template": TEMPLATE}}}]},
        },
    },
}  # fmt: skip
WORKLOAD: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": {
        "name": "w", "namespace": "nlp", "uid": "w-1", "resourceVersion": "41",
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "sft", "uid": "j", "controller": True}],
        "annotations": {"planner.dev/gpu": "H200-SXM-141GB"},
    },
    "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 2, "template": TEMPLATE}]},
    "status": {
        "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": "t"}],
        "admission": {"podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": "h200"}, "count": 2}]},
        "admissionChecks": [{"name": "planner", "state": "Pending", "retryCount": 1}],
    },
}  # fmt: skip
_LEVELS = Levels(requested_bytes=100, allocated_bytes=512, active_bytes=512, reserved_bytes=2**21)
MEASUREMENT = Measurement(
    case="small",
    job=DECODER,
    device=DeviceFacts(kind="cuda", name="H100", total_bytes=2**36, arch="sm_90", multiprocessors=132),
    software={"torch": "2.13"},
    date="2026-01-31",
    phases=(MeasuredPhase(phase=Phase.FORWARD, iteration=1, peak=_LEVELS, end=_LEVELS, device_bytes=2**30),),
    categories={"parameter": 100},
    out_of_memory=OutOfMemory(phase=Phase.BACKWARD, iteration=1, message="CUDA out of memory."),
    truth=Truth(runs=3, agreeing=2, net_bytes=1, live_bytes=1),
)
CONF = (
    "expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4],"
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9,large_segment_size_mb:24,backend:native"
)


def snapshot(blocks: int = 3, conf: str = "") -> dict[str, Any]:
    """Blocks of a MiB and a half, one after the other in segments of 20 MiB, as torch writes them."""
    segment, block, most = 20 * 2**20, 3 * 2**19, 13
    trace: list[dict[str, Any]] = []
    segments: list[dict[str, Any]] = []
    for number in range(blocks):
        home, place = divmod(number, most)
        base = 2**34 + home * segment
        if not place:
            trace.append({"action": "segment_alloc", "addr": base, "size": segment, "stream": 0})
            segments.append(_segment(base, segment))
        trace.append({"action": "alloc", "addr": base + place * block, "size": block, "stream": 0})
        segments[-1]["blocks"].append({"size": block, "requested_size": block, "state": "active_allocated"})
    for each_segment in segments:
        rest = segment - len(each_segment["blocks"]) * block
        each_segment["blocks"].append({"size": rest, "requested_size": 0, "state": "inactive"})
    return {"device_traces": [trace], "segments": segments, "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf}}


def _segment(base: int, size: int) -> dict[str, Any]:
    return {
        "device": 0, "address": base, "total_size": size, "stream": 0, "segment_type": "large", "blocks": [],
        "is_expandable": False, "segment_pool_id": (0, 0),
    }  # fmt: skip


DOCUMENTS: dict[str, dict[str, Any]] = {
    "spec_in_json": SPEC,
    "spec_in_yaml": SPEC,
    "spec_file": TRAINER,
    "validation": VALIDATION,
    "report": {**REPORT, "system": "slurm", "id": "4711"},
    "review": REVIEW,
    "workload": WORKLOAD,
    "measurements": json.loads(measurement_lines.line(MEASUREMENT)),
    "calibration": calibrations.to_json(Calibration.none()),
}
"""Of the readers that read JSON, or YAML."""
TEXTS: dict[str, bytes] = {
    **{name: json.dumps(document).encode() for name, document in DOCUMENTS.items()},
    "snapshot": pickle.dumps(snapshot(), protocol=4),
    "failed_snapshot": pickle.dumps(
        memory_viz.snapshot([Alloc(0, 600 * MIB), Alloc(1, 500 * MIB)], capacity_bytes=1000 * MIB), protocol=4
    ),
    "log": alloc_conf(
        {
            "device": 0,
            "tried": "2.00 GiB",
            "total": "79.00 GiB",
            "free": "1.00 GiB",
            "this": "78.00 GiB",
            "allocated": "76.00 GiB",
            "unallocated": "1.00 GiB",
        }
    ).encode(),
    "allocator_conf": CONF.encode(),
}

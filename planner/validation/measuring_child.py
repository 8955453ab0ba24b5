"""Measures one rank in a process that then ends.

It imports neither Ray nor the paper GPU, so that what it measures is the step's alone.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from planner.errors import PlannerError
from planner.runtime.channel import AnswerWriter

MEASUREMENT, FAILURE = "measurement", "failure"
"""Parts of the answer, both JSON: what was measured; what the step raised, and whether a peer's end was its cause."""


def answer_request(request: Mapping[str, Any], answer: AnswerWriter) -> None:
    """Measure the rank of the request and answer. Raises PlannerError for what cannot be measured."""
    try:
        measured = _measure_rank(request)
    except (PlannerError, MemoryError):
        raise
    except Exception as error:
        failure = {"problem": _describe_error(error), "of_a_peer": _of_a_peer(error)}
        answer.write(FAILURE, json.dumps(failure).encode())
    else:
        answer.write(MEASUREMENT, json.dumps(measured).encode())


def _measure_rank(request: Mapping[str, Any]) -> dict[str, Any]:
    from planner.job.code_rules import CodeRules
    from planner.job.loading import load_bundle

    job = load_bundle(request["job"])
    import torch

    from planner.training.models import factory

    factory.allow(CodeRules(**request["code"]))

    from planner.measuring import measurement
    from planner.measuring.measure import measure

    device = torch.device(request["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # oneDNN lays tensors out by processor, and no plan says how
    else:
        device = torch.device("cuda", 0)  # Ray lets this process see no other
    peers = "present" if request.get("meeting") else "absent"
    if peers == "present":
        _meet(request, device)
    found = measure(job, device, rank=request["rank"], peers=peers).measurement
    if peers == "present" and found.out_of_memory is None:
        # Nobody leaves while others still measure: a peer that is gone breaks their last collective. One that ran out
        # of memory tells it at once. The group is not destroyed, as the process ends.
        torch.distributed.barrier()
    return measurement.to_json(found)


def _meet(request: Mapping[str, Any], device: Any) -> None:
    """Join the real peers."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        init_method=request["meeting"],
        rank=request["rank"],
        world_size=request["world_size"],
        timeout=datetime.timedelta(seconds=request["seconds"]),
    )


def _of_a_peer(error: Exception) -> bool:
    """Whether it only says that another rank is gone: NCCL has a class for it, gloo a place in its source."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or "gloo/transport" in str(error)


def _describe_error(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"the measured step failed: {type(error).__name__}: {lines[0][:300] if lines else 'without a word'}"

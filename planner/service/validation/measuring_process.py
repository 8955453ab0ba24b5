"""Measures one rank in a process of its own, and turns however that process ends into an answer."""

from __future__ import annotations

import datetime
import glob
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import PlannerError
from planner.runtime import messages, running
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import MEMORY, AnswerWriter, Task
from planner.runtime.walls import Walls
from planner.truth.measuring import measurement_lines
from planner.units import show_bytes

MEASUREMENT, FAILURE = "measurement", "failure"
"""Parts of the answer, both JSON: what was measured; what the step raised, and whether a peer's end was its cause."""


def answer_request(request: Mapping[str, Any], answer: AnswerWriter) -> None:
    try:
        measured = _measure_rank(request)
    except (PlannerError, MemoryError):
        raise
    except Exception as error:
        from torch.distributed import DistError

        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["without a word"]
        # That another rank is gone NCCL says by a class, gloo by a place in its source.
        of_a_peer = isinstance(error, DistError) or "gloo/transport" in str(error)
        problem = f"the measured step failed: {type(error).__name__}: {lines[0][:300]}"
        answer.write(FAILURE, json.dumps({"problem": problem, "of_a_peer": of_a_peer}).encode())
    else:
        answer.write(MEASUREMENT, json.dumps(measured).encode())


def _measure_rank(request: Mapping[str, Any]) -> dict[str, Any]:
    from planner.job.code_rules import CodeRules
    from planner.job.loading import load_bundle

    job = load_bundle(request["job"])
    import torch

    from planner.training.models import build

    build.allow(CodeRules(**request["code"]))

    from planner.truth.measuring.measure import measure

    device = torch.device(request["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # oneDNN lays tensors out by processor, and no plan says how
    else:
        device = torch.device("cuda", 0)  # Ray lets this process see no other
    meets = bool(request.get("meeting"))
    if meets:
        torch.distributed.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            init_method=request["meeting"],
            rank=request["rank"],
            world_size=request["world_size"],
            timeout=datetime.timedelta(seconds=request["seconds"]),
        )
    measured = measure(job, device, rank=request["rank"], peers="present" if meets else "absent").measurement
    if meets and measured.out_of_memory is None:
        # Nobody leaves while others still measure: a peer that is gone breaks their last collective. One that ran out
        # of memory tells it at once. The group is not destroyed, as the process ends.
        torch.distributed.barrier()
    return measurement_lines.to_json(measured)


_MOST_CHARACTERS = 2000
_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_QUIET = {"KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
_OF_THE_GPU = ("CUDA_VISIBLE_DEVICES", "NCCL_", "NVIDIA_")
"""Variables, or their beginnings, that a process on a GPU needs behind walls too."""


def run(request: Mapping[str, Any], limits: Limits, walls: Walls | None = None) -> dict[str, Any]:
    """The child's answer: `{"measurement": ...}`, or `{"problem": ..., ...}` whatever went wrong.

    `walls` are those of a job that brings code; the GPU's devices and the way to its peers are let through. To be
    called from a thread that lives as long as the child: the kernel ends the child with it.
    """
    conf = str(request["job"].get("allocator", {}).get("conf", ""))
    if walls is not None:
        devices = tuple(sorted(glob.glob("/dev/nvidia*"))) if request["device"] == "cuda" else ()
        walls = replace(walls, devices=devices, network=bool(request.get("meeting")))
    task = Task(f"{__name__}:answer_request", dict(request) | {"seconds": limits.seconds})
    try:
        answer = running.run(task, limits, walls=walls, environment=build_environment(conf, walled=walls is not None))
    except PlannerError as refused:
        return dict(refused.parts)
    if MEMORY not in answer.parts and (exceeded := messages.exceeded_limit(answer, limits)) is not None:
        return {"problem": _too_much(exceeded)}
    if (error := messages.error_of(answer)) is not None:
        parts = {"problem": error.problem, **error.parts}
        return {name: text[:_MOST_CHARACTERS] for name, text in parts.items()} | {"of_a_peer": False}
    try:
        if FAILURE in answer.parts:
            failure = json.loads(answer.parts[FAILURE])
            return {"problem": str(failure["problem"])[:_MOST_CHARACTERS], "of_a_peer": failure["of_a_peer"] is True}
        if MEMORY in answer.parts:
            return {"problem": "the host's memory ran out in the measured step"}
        measured = measurement_lines.from_json(json.loads(answer.parts[MEASUREMENT]))
        if (measured.rank, measured.world_size) == (request["rank"], request["world_size"]) and not measured.error:
            return {"measurement": measurement_lines.to_json(measured)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, PlannerError):
        pass  # a foreign program has answered in its place, or nobody has
    if answer.exit_code == -signal.SIGKILL:
        return {
            "problem": "the measuring process was killed (SIGKILL), as the kernel does where a host's memory runs out"
        }
    if (fault := messages.fault_line(answer)) is not None:
        return {"problem": f"a fault of planner itself in the measuring process: {fault}"}
    return {"problem": f"the measuring process ended with {messages.ending(answer)}"}


def build_environment(conf: str, *, walled: bool = False) -> dict[str, str]:
    """This process's own, or what a GPU needs of it behind walls; with the allocator's settings of the job and of
    nobody else."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_OF_THE_GPU) if walled else name not in _CONFS)
    }
    # torch before 2.10 reads the old name only, and later ones read both.
    return {**kept, **_QUIET, **(dict.fromkeys(_CONFS, conf) if conf else {})}


def _too_much(exceeded: LimitExceededError) -> str:
    limits = exceeded.limits
    match exceeded.limit:
        case Limit.SECONDS:
            return f"the measured step was not done within {limits.seconds:g} s, and was ended"
        case Limit.MEMORY:
            return (
                f"the measured step took more than {show_bytes(limits.memory_bytes)} of the host's memory, and was "
                "ended (PLANNER_VALIDATION_MEMORY_BYTES)"
            )
        case Limit.TASKS:
            return f"the measured step started more than {limits.tasks} processes and threads, and was ended"
        case Limit.ANSWER:
            return f"the measurement is larger than {show_bytes(limits.answer_bytes)}"

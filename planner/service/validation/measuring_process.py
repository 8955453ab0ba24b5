"""Measures one rank in a process of its own, and turns however that process ends into an answer."""

from __future__ import annotations

import glob
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import PlannerError
from planner.job.code_rules import CodeRules
from planner.job.loading import load_bundle
from planner.runtime import messages, running
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import MEMORY, AnswerWriter, Task
from planner.runtime.walls import Walls
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measure import ALLOCATOR_CONFS, ProgramFailedError, make_setting, measure_once
from planner.units import show_bytes

MEASUREMENT, FAILURE = "measurement", "failure"
"""Parts of the answer, both JSON: what was measured; what the step raised, and whether a peer's end was its cause."""


def answer_request(request: Mapping[str, Any], answer: AnswerWriter) -> None:
    """The child's side. It ends as the program that it starts where that has left no word."""
    setting = {name: request[name] for name in ("device", "rank", "meeting")}
    job = load_bundle(request["job"])
    try:
        measured = measure_once(job, make_setting(job, **setting, code=CodeRules(**request["code"])))
    except ProgramFailedError as failed:
        if not failed.ended_by:
            raise SystemExit(failed.exit_code) from failed
        failure = {"problem": failed.problem, "of_a_peer": failed.is_of_a_peer}
        answer.write(FAILURE, json.dumps(failure).encode())
    else:
        answer.write(MEASUREMENT, json.dumps(measurement_lines.to_json(measured)).encode())


_MOST_CHARACTERS = 2000
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""How the child ends if it is killed, or if its program is."""
_OF_THE_GPU = ("CUDA_VISIBLE_DEVICES", "NCCL_", "NVIDIA_")
"""Variables, or their beginnings, that a process on a GPU needs behind walls too."""


def run(request: Mapping[str, Any], limits: Limits, walls: Walls | None = None) -> dict[str, Any]:
    """The child's answer: `{"measurement": ...}`, or `{"problem": ..., ...}` whatever went wrong.

    `walls` are those of a job that brings code; the GPU's devices and the way to its peers are let through. To be
    called from a thread that lives as long as the child: the kernel ends the child with it.
    """
    if walls is not None:
        devices = tuple(sorted(glob.glob("/dev/nvidia*"))) if request["device"] == "cuda" else ()
        walls = replace(walls, devices=devices, network=bool(request.get("meeting")))
    task = Task(f"{__name__}:answer_request", {"meeting": "", **request})
    try:
        answer = running.run(task, limits, walls=walls, environment=build_environment(walled=walls is not None))
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
    if answer.exit_code in _KILLED:
        return {
            "problem": "the measuring process was killed (SIGKILL), as the kernel does where a host's memory runs out"
        }
    if (fault := messages.fault_line(answer)) is not None:
        return {"problem": f"a fault of planner itself in the measuring process: {fault}"}
    return {"problem": f"the measuring process ended with {messages.ending(answer)}"}


def build_environment(*, walled: bool = False) -> dict[str, str]:
    """This process's own, or what a GPU needs of it behind walls; without its settings of the allocator."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_OF_THE_GPU) if walled else name not in ALLOCATOR_CONFS)
    }


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

"""The process that measures: one rank, then it ends. Nothing that happens in it reaches anybody but as an answer.

It reads a request from its standard input and answers on its standard output, both plain JSON; what the program prints
goes to standard error. It imports neither Ray nor the paper GPU, so that what it measures is the step's alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from planner.errors import PlannerError

PROBLEM = 2
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def answer_request() -> None:
    """The whole life of the process; it does not return."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    _end_with(int(request["parent"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(math.ceil(request["seconds"]) + 5)  # for a parent that can end nobody any more
    code = 0
    try:
        document: dict[str, Any] = {"measurement": _measured(request)}
    except PlannerError as error:
        document, code = _problem(error), PROBLEM
    except MemoryError:
        document, code = {"problem": "the host's memory ran out in the measured step"}, PROBLEM
    except Exception as error:
        document, code = {"problem": _said(error), "of_a_peer": _of_a_peer(error)}, PROBLEM
    json.dump(document, answers)
    answers.flush()
    # Not the ordinary way out: threads of a process group or of a foreign program could keep the process.
    os._exit(code)


def _end_with(parent: int) -> None:
    """The kernel ends this process when its parent ends, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(PROBLEM)


def _measured(request: Mapping[str, Any]) -> dict[str, Any]:
    from planner.spec.loading import load_bundle

    job = load_bundle(request["job"])
    import torch

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


def _problem(error: PlannerError) -> dict[str, Any]:
    return {"problem": error.problem, "allowed": error.allowed, "remedy": error.remedy, "place": error.place}


def _of_a_peer(error: Exception) -> bool:
    """Whether it only says that another rank is gone: NCCL has a class for it, gloo a place in its source."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or "gloo/transport" in str(error)


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"the measured step failed: {type(error).__name__}: {lines[0][:300] if lines else 'without a word'}"


if __name__ == "__main__":
    answer_request()

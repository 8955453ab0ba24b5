"""Programs in processes that have another GPU on paper than that of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from planner import cuda_on_paper
from planner.cuda_on_paper import PaperGpu
from planner.units import GIB

_ENVIRONMENT = {**os.environ, **cuda_on_paper.start_variables(), "PYTHONPATH": os.pathsep.join(sys.path)}
"""As it is before a test has a cache of its own."""


def printed_on(arch: str, program: str, *arguments: str) -> str:
    """What these lines print where the GPU is one of this architecture with 80 GiB."""
    of_gpu = cuda_on_paper.gpu_variables(PaperGpu(f"one of {arch}", arch, 80 * GIB))
    command = [sys.executable, "-c", program, *arguments]
    environment = {**_ENVIRONMENT, **of_gpu}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


_COMPILED = """
import json, os, sys
from planner import paper
import torch
import torch._inductor.config
from planner.events import Alloc
from planner.paper import compiled

arch, cache, function, given, settings = sys.argv[1:]
with paper.gpu(arch) as gpu:
    os.environ["PLANNER_CACHE"] = cache
    with (
        compiled.enable(gpu.recorder, as_asked=True) as account,
        torch._inductor.config.patch(json.loads(settings)),
    ):
        given, run, told = eval(given), torch.compile(eval(function)), []
        for _ in range(2):
            before = len(gpu.recorder.events())
            run(*given)
            allocs = [event for event in gpu.recorder.events()[before:] if isinstance(event, Alloc)]
            told.append([(each.origin.op, each.origin.shape, each.requested_bytes) for each in allocs if each.origin])
        print(json.dumps([*told, account.assumed()]))
"""


def compiled_on(arch: str, cache: object, function: str, given: str, **settings: object) -> tuple[Any, Any, Any]:
    """What two runs of a compiled function allocate, as (operator, shape, bytes), and what compiling assumed.

    The function, and the tensors that it is given, are expressions; settings are Inductor's.
    """
    printed = printed_on(arch, _COMPILED, arch, str(cache), function, given, json.dumps(settings))
    first, second, assumed = json.loads(printed.splitlines()[-1])
    return first, second, assumed

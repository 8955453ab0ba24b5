"""Programs in processes that have another GPU on paper than that of the tests."""

from __future__ import annotations

import os
import subprocess
import sys

from planner import cuda_on_paper
from planner.cuda_on_paper import PaperGpu
from planner.units import GIB


def printed_on(arch: str, program: str, *arguments: str) -> str:
    """What these lines print where the GPU is one of this architecture with 80 GiB."""
    of_gpu = cuda_on_paper.gpu_variables(PaperGpu(f"one of {arch}", arch, 80 * GIB), 1)
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **cuda_on_paper.start_variables(), **of_gpu, **path}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout

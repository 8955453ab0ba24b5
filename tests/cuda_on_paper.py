"""Starts pytest anew as a process in which torch finds CUDA on paper: `-p tests.cuda_on_paper`."""

from __future__ import annotations

import os
import sys

from planner import cuda_on_paper
from planner.hardware import catalog

if cuda_on_paper.is_wanted() and not cuda_on_paper.is_on():
    known = catalog.by_name("H100-SXM-80GB")
    assert known is not None
    gpu = cuda_on_paper.PaperGpu(known.product, known.arch, known.total_bytes)
    os.environ |= cuda_on_paper.start_variables() | cuda_on_paper.gpu_variables(gpu, 8)
    os.execv(sys.executable, sys.orig_argv)

"""What timing a kernel takes: a buffer, which is overwritten between calls to empty the GPU's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from planner.paper.outside.operators import recorded_as

TRITON_BUFFER_BYTES = 256 * 2**20
"""Of `triton.testing.do_bench` (Triton 3.9, backends/nvidia/driver.py, get_empty_cache_for_benchmark)."""


def benchmark(call: Callable[[], Any], buffer_bytes: int, operator: str) -> float:
    """Calls it, takes the buffer as this operator's (`triton::do_bench`), and calls it beside that, as
    `triton.testing.do_bench` and Inductor's `benchmark_gpu` do (torch 2.13, torch/_inductor/runtime/benchmarking.py).
    All take the same time."""
    call()
    with recorded_as(operator):
        buffer = torch.empty(buffer_bytes // 4, dtype=torch.int32, device="cuda")
    call()
    del buffer
    return 1.0

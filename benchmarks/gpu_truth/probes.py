"""Small programs that show what no step shows by itself: bytes outside the allocator, pools of graphs, streams.

On a CPU they run all that a CPU has of them, so that a rehearsal goes through the same lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.truth.measuring import nvml

Found = dict[str, Any]


def device_bytes(device: torch.device) -> Found:
    """What the driver counts for this process beside the allocator: before any kernel, and after each kind of kernels,
    whose images are loaded at their first use or all at once (CUDA_MODULE_LOADING)."""
    rows = [_row("context", device)]
    for name, call in _KINDS.items():
        try:
            call(device)
        except RuntimeError as refusal:  # what this build lacks is an answer too
            rows.append({"after": name, "error": str(refusal).splitlines()[0][:200]})
            continue
        rows.append(_row(name, device))
    return {"module_loading": os.environ.get("CUDA_MODULE_LOADING", ""), "rows": rows}


def streams(device: torch.device) -> Found:
    """A tensor of one stream that another uses (`record_stream`): when its block is free again."""
    if device.type != "cuda":
        return {"rows": [_row(str(torch.ones(1024, device=device).sum().item()), device)]}
    rows, side = [], torch.cuda.Stream(device)
    for records in (False, True):
        given = torch.ones(1 << 22, device=device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(20):
                given.mul_(1.0)
        if records:
            given.record_stream(side)
        address = given.data_ptr()
        del given
        before = torch.empty(1 << 22, device=device)
        rows.append({**_row("given up at once", device), "recorded": records, "reused": before.data_ptr() == address})
        del before
        torch.cuda.synchronize(device)
        after = torch.empty(1 << 22, device=device)
        rows.append({**_row("waited", device), "recorded": records, "reused": after.data_ptr() == address})
        del after
    return {"rows": rows}


def graph_pools(device: torch.device) -> Found:
    """A step is captured and replayed: what its private pool reserves, alone and shared by a second graph."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to(device)
    given = torch.ones(64, 256, device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(given).sum().backward()

    step()
    rows = [_row("eager", device)]
    if device.type != "cuda":
        return {"rows": rows}
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream(device).wait_stream(side)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        step()
    rows.append(_row("captured", device))
    with torch.cuda.graph(second, pool=first.pool()):
        step()
    rows.append(_row("a second graph in its pool", device))
    first.replay()
    torch.cuda.synchronize(device)
    rows.append(_row("replayed", device))
    first.reset()
    second.reset()
    torch.cuda.empty_cache()
    rows.append(_row("reset and emptied", device))
    return {"rows": rows}


PROBES: dict[str, Callable[[torch.device], Found]] = {
    "device_bytes": device_bytes,
    "streams": streams,
    "graph_pools": graph_pools,
}


def _row(name: str, device: torch.device) -> Found:
    if device.type != "cuda":
        return {"after": name, "reserved_bytes": 0, "allocated_bytes": 0, "process_bytes": 0, "used_bytes": 0}
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "after": name,
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "process_bytes": nvml.process_bytes(str(torch.cuda.get_device_properties(device).uuid)),
        "used_bytes": total - free,
    }


def _normal(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=dtype.is_floating_point)


def _multiplied(device: torch.device) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        (_normal(device, 256, 256, dtype=dtype) @ _normal(device, 256, 256, dtype=dtype)).sum().backward()


def _convolved(device: torch.device) -> None:
    torch.conv2d(_normal(device, 2, 16, 32, 32), _normal(device, 16, 16, 3, 3), padding=1).sum().backward()


def _attended(device: torch.device) -> None:
    query, key, value = (_normal(device, 2, 4, 64, 64, dtype=torch.bfloat16) for _ in range(3))
    nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()


def _reduced(device: torch.device) -> None:
    given = _normal(device, 64, 1000)
    nn.functional.cross_entropy(
        nn.functional.layer_norm(given, (1000,)), torch.zeros(64, dtype=torch.int64, device=device)
    ).backward()


def _sorted(device: torch.device) -> None:
    _normal(device, 4096).sort()


def _transformed(device: torch.device) -> None:
    torch.fft.fft(torch.randn(16, 1000, device=device))


def _solved(device: torch.device) -> None:
    torch.linalg.qr(torch.randn(64, 64, device=device))


def _stepped(device: torch.device) -> None:
    weight = nn.Parameter(torch.ones(1024, device=device))
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], foreach=True).step()


_KINDS = {
    "matrix products": _multiplied,
    "norms and losses": _reduced,
    "optimizer": _stepped,
    "attention": _attended,
    "convolutions": _convolved,
    "sorting": _sorted,
    "Fourier transforms": _transformed,
    "solvers": _solved,
}

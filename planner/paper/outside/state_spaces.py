"""mamba-ssm and causal-conv1d: what their Python code finds in their extensions; Triton kernels run as others'."""

from __future__ import annotations

import os
from typing import Any

import torch

from planner.paper.outside.operators import kernel

Tensor = torch.Tensor
Maybe = Tensor | None

_POSITIONS = 2048
"""Positions of a sequence that a block of threads scans."""


# Source, causal-conv1d 1.6.1: csrc/causal_conv1d.cpp. Results are made by the package's own Python code since 1.5.
def causal_conv1d_fwd(
    x: Tensor, weight: Tensor, bias: Maybe, seq_idx: Maybe, initial_states: Maybe, out: Tensor,
    final_states_out: Maybe, silu_activation: bool,
) -> None:  # fmt: skip
    """Writes to `out` and `final_states_out`."""


def causal_conv1d_update(*_arguments: Any) -> None:
    """Writes to the state and to the result that it is given."""


@kernel("causal_conv1d::bwd")
def causal_conv1d_bwd(
    x: Tensor, weight: Tensor, bias: Maybe, dout: Tensor, seq_idx: Maybe, initial_states: Maybe,  # noqa: ARG001
    dfinal_states: Maybe, dx: Tensor, dweight: Tensor, dbias: Maybe, dinitial_states: Maybe,  # noqa: ARG001
    silu_activation: bool,  # noqa: ARG001
) -> None:  # fmt: skip
    """Adds to gradients that it is given; where it has to be deterministic it sums those of parts of a sequence."""
    if not _is_deterministic("CAUSAL_CONV1D_DETERMINISTIC"):
        return
    batch, _, length = x.shape
    outer = [batch]
    if x.stride(1) == 1 and x.stride(2) > 1:
        outer.append(-(-length // (64 if length <= 128 else 128)))
    gradients = [gradient for gradient in (dweight, dbias) if gradient is not None]
    parts = [torch.zeros((*outer, *gradient.shape), dtype=torch.float32, device=x.device) for gradient in gradients]
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.add_(part.sum(tuple(range(len(outer)))))


def _is_deterministic(variable: str) -> bool:
    said = os.environ.get(variable, "")[:1]
    return said == "1" or (said != "0" and torch.are_deterministic_algorithms_enabled())


# Source, mamba-ssm 2.3.1: csrc/selective_scan/selective_scan.cpp.
@kernel("selective_scan::fwd")
def selective_scan_fwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Maybe, z: Maybe,  # noqa: ARG001, N803
    delta_bias: Maybe, delta_softplus: bool,  # noqa: ARG001
) -> list[Tensor]:  # fmt: skip
    """Result, states between parts of the sequence, with a gate also the gated result."""
    gated = [] if z is None else [torch.empty_like(z)]
    out = torch.empty_like(delta)
    parts = -(-u.size(2) // _POSITIONS)
    states = torch.empty(u.size(0), u.size(1), parts, A.size(1) * 2, dtype=A.dtype, device=u.device)
    return [out, states, *gated]


@kernel("selective_scan::bwd")
def selective_scan_bwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Maybe, z: Maybe, delta_bias: Maybe,  # noqa: N803
    dout: Tensor, x: Maybe, out: Maybe, dz: Maybe, delta_softplus: bool, recompute_out_z: bool,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Gradients of u, delta, A, B, C, D, the bias and the gate, and the gated result anew."""
    gate = [] if z is None else [torch.empty_like(z) if dz is None else dz]
    if z is not None and recompute_out_z:
        gate.append(torch.empty_like(z))
    grads: list[Maybe] = [torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)]
    of_inputs = [torch.zeros_like(given, dtype=torch.float32 if given.dim() >= 3 else None) for given in (B, C)]
    others = [None if given is None else torch.zeros_like(given) for given in (D, delta_bias)]
    grads += [grad.to(given.dtype) for grad, given in zip(of_inputs, (B, C), strict=True)]
    return [*grads, *others, *gate]


SELECTIVE_SCAN: dict[str, Any] = {"fwd": selective_scan_fwd, "bwd": selective_scan_bwd}

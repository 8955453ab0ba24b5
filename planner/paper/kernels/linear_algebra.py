"""Decompositions and solvers of cuSOLVER whose shapes torch does not know without values.

Source: torch 2.13 aten/src/ATen/native/BatchLinearAlgebra.cpp and cuda/linalg/BatchLinearAlgebra.cpp.
"""

from __future__ import annotations

import torch

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda

Tensor = torch.Tensor


@cuda("_linalg_check_errors")
def check_errors(infos: Tensor, _name: str, *, is_matrix: bool) -> None:  # noqa: ARG001
    """One flag for all matrices, which the host reads; in a healthy step none of them is singular."""
    infos.any()


@cuda("geqrf")
def householder(x: Tensor) -> tuple[Tensor, Tensor]:
    """The factors by columns, and a number for each reflection."""
    factors = _by_columns(x.shape, x)
    tau = x.new_empty((*x.shape[:-2], min(x.shape[-2:])))
    workspace = workspaces.take("cusolver", "cuSOLVER", [x], "geqrf")
    del workspace
    return factors, tau


@cuda("linalg_lstsq")
def least_squares(
    x: Tensor,
    right: Tensor,
    rcond: float | None = None,  # noqa: ARG001
    *,
    driver: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By `gels`, the only driver on a GPU: no rank and no singular values; residuals where there are more equations
    than unknowns. The right-hand sides lie where the solution will."""
    if driver not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: parameter `driver` should be one of (gels)")
    is_vector = right.dim() == 1 or (x.dim() - 1 == right.dim() and right.shape == x.shape[:-1])
    columns = right.unsqueeze(-1) if is_vector else right
    batch = torch.broadcast_shapes(x.shape[:-2], columns.shape[:-2])
    rows, unknowns, sides = x.size(-2), x.size(-1), columns.size(-1)
    kept = [
        torch.zeros(max(1, batch.numel()), dtype=torch.int32, device="cuda"),
        _by_columns((*batch, rows, unknowns), x),
    ]
    solution = _by_columns((*batch, max(rows, unknowns), sides), x)
    workspace = workspaces.take("cusolver", "cuSOLVER", [x, columns], "gels")
    del workspace
    residuals = x.new_empty(0, dtype=x.dtype.to_real())
    if rows > unknowns:
        residuals = solution.narrow(-2, unknowns, rows - unknowns).abs().sum(-2)
    del kept
    found = solution.narrow(-2, 0, unknowns)
    nothing = x.new_empty(0, dtype=torch.int64), x.new_empty(0, dtype=x.dtype.to_real())
    return found.squeeze(-1) if is_vector else found, residuals, *nothing


@cuda("linalg_eig")
def eigenvectors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Complex whatever the matrix is, the vectors by columns; made complex from real ones beside them."""
    dtype = x.dtype if x.is_complex() else x.dtype.to_complex()
    kept = [_by_columns(x.shape, x), torch.zeros(x.shape[:-2], dtype=torch.int32, device="cuda")]
    if not x.is_complex():
        kept.append(_by_columns(x.shape, x))
    workspace = workspaces.take("cusolver", "cuSOLVER", [x], "geev")
    del workspace
    values, vectors = x.new_empty(x.shape[:-1], dtype=dtype), _by_columns(x.shape, x, dtype)
    del kept
    return values, vectors


def _by_columns(shape: tuple[int, ...] | torch.Size, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    *batch, rows, columns = shape
    return like.new_empty((*batch, columns, rows), dtype=dtype).mT

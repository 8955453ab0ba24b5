"""Decompositions and solvers of cuSOLVER, grouped matrix products, Fourier transforms of cuFFT."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda, like_meta, scratch, target

# Source: torch 2.13 aten/src/ATen/native/BatchLinearAlgebra.cpp, cuda/linalg/BatchLinearAlgebra.cpp and
# cuda/linalg/BatchLinearAlgebraLib.cpp.
_SMALL = 32
"""Matrices of up to so many rows and columns have kernels of their own (gesvdjBatched)."""
_LARGE = 512
"""Matrices of so many rows are factorized by cuSOLVER, however many there are."""
_POINTER = 8


@cuda("_linalg_check_errors")
def check_errors(infos: Tensor, _name: str, *, is_matrix: bool) -> None:  # noqa: ARG001
    """One flag for all matrices, which the host reads; in a healthy step none of them is singular."""
    infos.any()


@cuda("geqrf")
def householder(x: Tensor) -> tuple[Tensor, Tensor]:
    """The factors by columns, and a number for each reflection."""
    factors = _by_columns(x.shape, x)
    tau = x.new_empty((*x.shape[:-2], min(x.shape[-2:])))
    _run("geqrf", x)
    return factors, tau


@cuda("linalg_qr")
def orthogonal_factor(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """The factors lie in one of the results while they are made, where they fit in; beside them otherwise."""
    q, r = like_meta("linalg_qr", x, mode)
    if x.numel() == 0:
        return q, r
    rows, columns = x.shape[-2:]
    tau = x.new_empty((*x.shape[:-2], min(rows, columns)))
    fits = (mode != "r" and q.size(-1) == columns) or r.size(-2) == rows
    factors = None if fits else _by_columns(x.shape, x)
    _run("geqrf", x)
    if mode != "r":
        _run("orgqr", x)
    del tau, factors
    return q, r


@cuda("linalg_householder_product")
def product_of_reflections(x: Tensor, tau: Tensor) -> Tensor:
    product: Tensor = like_meta("linalg_householder_product", x, tau)
    _run("orgqr", x)
    return product


@cuda("_linalg_svd")
def singular_values(
    x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """By Jacobi's method unless a driver is named, which is taken to converge, of a copy by columns. Vectors that
    nobody asked for have room nevertheless."""
    results: tuple[Tensor, Tensor, Tensor] = like_meta(
        "_linalg_svd", x, full_matrices=full_matrices, compute_uv=compute_uv, driver=driver
    )
    if x.numel() == 0:
        return results
    infos = torch.zeros(x.shape[:-2], dtype=torch.int32, device="cuda")
    copy = _by_columns(x.shape, x)
    (rows, columns), matrices = x.shape[-2:], prod(x.shape[:-2])
    is_small = driver in (None, "gesvdj") and max(rows, columns) <= _SMALL
    beside = []
    if is_small and compute_uv and not full_matrices and rows != columns:
        beside.append(x.new_empty(matrices * max(rows, columns) ** 2))
    if not compute_uv:
        width, count = (max(rows, columns), matrices) if is_small else (min(rows, columns), 1)
        beside += [x.new_empty(count * rows * width), x.new_empty(count * columns * width)]
    _run("gesvdjBatched" if is_small else driver or "gesvdj", x)
    del copy, beside
    check_errors(infos, "linalg.svd", is_matrix=x.dim() == 2)
    return results


@cuda("_linalg_eigh")
def hermitian_eigenvectors(x: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """The vectors take the matrix's place in the result, or in a copy if nobody asked for them."""
    results: tuple[Tensor, Tensor] = like_meta("_linalg_eigh", x, uplo, compute_v)
    if x.numel() == 0:
        return results
    copy = None if compute_v else _by_columns(x.shape, x)
    infos = torch.zeros(x.shape[:-2], dtype=torch.int32, device="cuda")
    _run("syevd", x)
    del copy
    check_errors(infos, "linalg.eigh", is_matrix=x.dim() == 2)
    return results


@cuda("linalg_cholesky_ex")
def cholesky(x: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
    """In the result; several matrices by their addresses."""
    results: tuple[Tensor, Tensor] = like_meta("linalg_cholesky_ex", x, **named)
    matrices = prod(x.shape[:-2])
    if x.numel() and matrices == 1:
        _run("potrf", x)
    elif x.numel():
        scratch(matrices * _POINTER)
    return results


@cuda("_cholesky_solve_helper")
def solved_by_cholesky(right: Tensor, factor: Tensor, upper: bool) -> Tensor:
    infos = torch.zeros(1, dtype=torch.int32, device="cuda")
    solution: Tensor = like_meta("_cholesky_solve_helper", right, factor, upper)
    copy = _by_columns(factor.shape, factor)
    del copy, infos
    return solution


@cuda("linalg_inv_ex")
def inverse(x: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
    """The solution for an identity, which lies in the result: with the factors and pivots beside it."""
    results: tuple[Tensor, Tensor] = like_meta("linalg_inv_ex", x, **named)
    if x.numel():
        factors = _by_columns(x.shape, x), torch.empty(x.shape[:-1], dtype=torch.int32, device="cuda")
        _factorize(x)
        del factors
    return results


def _register_with_factors(operator: str) -> None:
    """The factors are among the results."""

    @cuda(operator)
    def kernel(x: Tensor, *more: Any, **named: Any) -> Any:
        results = like_meta(operator, x, *more, **named)
        _factorize(x)
        return results


for _operator in ("linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex"):
    _register_with_factors(_operator)


def _factorize(x: Tensor) -> None:
    """By cuSOLVER, one after the other; many small square ones by cuBLAS, which takes them by their addresses."""
    matrices, (rows, columns) = prod(x.shape[:-2]), x.shape[-2:]
    if x.numel() == 0:
        return
    if matrices == 1 or rows != columns or rows >= _LARGE:
        _run("getrf", x)
    else:
        scratch(matrices * _POINTER)


def _run(function: str, x: Tensor) -> None:
    """A function of cuSOLVER, with its workspace."""
    workspaces.take("cusolver", "cuSOLVER", [x], function)


@cuda("linalg_lstsq")
def least_squares(
    x: Tensor, right: Tensor, _rcond: float | None = None, *, driver: str | None = None
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
    workspaces.take("cusolver", "cuSOLVER", [x, columns], "gels")
    residuals = x.new_empty(0, dtype=x.dtype.to_real())
    if rows > unknowns:
        residuals = solution.narrow(-2, unknowns, rows - unknowns).abs().sum(-2)
    del kept
    solution = solution.narrow(-2, 0, unknowns)
    nothing = x.new_empty(0, dtype=torch.int64), x.new_empty(0, dtype=x.dtype.to_real())
    return solution.squeeze(-1) if is_vector else solution, residuals, *nothing


@cuda("linalg_eig")
def eigenvectors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Complex whatever the matrix is, the vectors by columns; made complex from real ones beside them."""
    dtype = x.dtype if x.is_complex() else x.dtype.to_complex()
    kept = [_by_columns(x.shape, x), torch.zeros(x.shape[:-2], dtype=torch.int32, device="cuda")]
    if not x.is_complex():
        kept.append(_by_columns(x.shape, x))
    workspaces.take("cusolver", "cuSOLVER", [x], "geev")
    values, vectors = x.new_empty(x.shape[:-1], dtype=dtype), _by_columns(x.shape, x, dtype)
    del kept
    return values, vectors


def _by_columns(shape: tuple[int, ...] | torch.Size, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    *batch, rows, columns = shape
    return like.new_empty((*batch, columns, rows), dtype=dtype).mT


# Source, torch 2.13: aten/src/ATen/native/cuda/GroupedBlas.cpp, GroupMM.cu, native/GroupedMMUtils.h.
_ALIGNMENT_BYTES = 16


@cuda("_grouped_mm")
def grouped_mm(
    a: Tensor, b: Tensor, offsets: Tensor | None = None, _bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Rows of the result begin at multiples of 16 bytes."""
    shape: tuple[int, ...] = (a.size(-2), b.size(-1))
    if a.dim() == b.dim() == 3:
        shape = (a.size(0), *shape)
    elif a.dim() == b.dim() == 2:
        assert offsets is not None
        shape = (offsets.size(0), *shape)
    kind = dtype or a.dtype
    padded = _round_up(shape[-1], _ALIGNMENT_BYTES // kind.itemsize)
    strides = (shape[-2] * padded, padded, 1)[-len(shape) :]
    out = torch.empty_strided(shape, strides, dtype=kind, device="cuda")
    is_hopper_or_later = target().arch.startswith("sm_") and target().capability[0] in (9, 10)
    if is_hopper_or_later and {a.dtype, b.dtype, kind} == {torch.bfloat16}:
        groups = f"groups={offsets.size(0) if offsets is not None else a.size(0)}"
        workspaces.take("cutlass", "grouped matrix product: its table of groups", [a, b], groups)
    else:
        _first_product(a, b, out)
    return out


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _first_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """The loop writes each group's product in its place; the first takes the workspace of the handle."""
    if a.dim() == 2 and b.dim() == 2:
        a, b = a.narrow(1, 0, 1), b.narrow(0, 0, 1)
    elif a.dim() == 2:
        a, out = a.narrow(0, 0, 1), out.narrow(0, 0, 1)
    elif b.dim() == 2:
        b, out = b.narrow(1, 0, 1), out.narrow(1, 0, 1)
    first = [t[0] if t.dim() == 3 else t for t in (a, b, out)]
    torch.mm(first[0], first[1], out=first[2])


# Source: torch 2.13 aten/src/ATen/native/cuda/SpectralOps.cpp and CuFFTPlanCache.h. cuFFT's own work area comes from
# the caching allocator; how large it is nobody outside of cuFFT knows.
_MOST_DIMS = 3
"""So many dims are transformed at once (cufft_max_ndim)."""
_CONTIGUOUS = torch.contiguous_format


@cuda("_fft_c2c")
def complex_to_complex(x: Tensor, dim: Sequence[int], _normalization: int = 0, _forward: bool = True) -> Tensor:
    """Three dims at a time, back and forth between two buffers where there are more."""
    if not dim:
        return x.clone()
    left, working, out = list(dim), x, torch.empty_like(x, memory_format=_CONTIGUOUS)
    while True:
        left.sort(key=working.stride, reverse=True)
        now, left = left[-_MOST_DIMS:], left[:-_MOST_DIMS]
        _transform(out, working, x.shape, now)
        if not left:
            return out
        if working is x:
            working, out = out, torch.empty_like(x, memory_format=_CONTIGUOUS)
        else:
            working, out = out, working


@cuda("_fft_r2c")
def real_to_complex(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    if x.dtype not in (torch.float16, torch.float32, torch.float64):
        return like_meta("_fft_r2c", x, dim, normalization, onesided)  # type: ignore[no-any-return]
    last, halves = dim[-1], list(x.shape)
    halves[last] = x.size(last) // 2 + 1
    sizes = halves if onesided else list(x.shape)
    out = x.new_empty(sizes, dtype=x.dtype.to_complex())
    working = x
    if x.data_ptr() % (2 * x.element_size()):  # not aligned for complex numbers
        working = x.movedim(last, -1).clone(memory_format=_CONTIGUOUS).movedim(-1, last)
    if _is_planned_whole(dim):
        _transform(out, working, sizes, dim)
    else:
        # The last dim from real to complex, then the others as complex numbers.
        _transform(out, working, halves, dim[-1:])
        spare, left = torch.empty_like(out, memory_format=_CONTIGUOUS), list(dim[:-1])
        while left:
            out, working = spare, out
            left.sort(key=working.stride, reverse=True)
            now, left = left[-_MOST_DIMS:], left[:-_MOST_DIMS]
            _transform(out, working, halves, now)
            spare = working
        del spare
    if not onesided and out.size(last) != x.size(last):
        return out.new_empty(x.shape)
    return out


@cuda("_fft_c2r")
def complex_to_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """The input is always copied: such transforms may write to it."""
    if x.dtype is torch.bfloat16:
        return like_meta("_fft_c2r", x, dim, normalization, last_dim_size)  # type: ignore[no-any-return]
    sizes = list(x.shape)
    sizes[dim[-1]] = last_dim_size
    out = x.new_empty(sizes, dtype=x.dtype.to_real())
    if _is_planned_whole(dim):
        _transform(out, x.clone(memory_format=_CONTIGUOUS), sizes, dim)
    else:
        _transform(out, complex_to_complex(x, dim[:-1]), sizes, dim[-1:])
    return out


def _is_planned_whole(dim: Sequence[int]) -> bool:
    return len(dim) <= _MOST_DIMS and tuple(dim[:2]) != (0, 1)


def _transform(out: Tensor, x: Tensor, sizes: Sequence[int], dim: Sequence[int]) -> None:
    """`_exec_fft`: batches first, in the order of their strides; `out` gets the strides that cuFFT writes in."""
    batch_dims = sorted((d for d in range(x.dim()) if d not in dim), key=x.stride, reverse=True)
    batches = x.permute(*batch_dims, *dim).reshape([-1, *(x.size(d) for d in dim)])
    signal = [max(batches.size(i + 1), sizes[d]) for i, d in enumerate(dim)]
    out.resize_([batches.size(0), *(sizes[d] for d in dim)])
    is_half = batches.is_complex() and batches.size(-1) != signal[-1]
    if _has_to_be_copied(batches, signal, onesided=is_half):
        batches = batches.clone(memory_format=_CONTIGUOUS)
    workspaces.take("cufft", "cuFFT", [batches], f"signal={signal} to={out.dtype}".replace("torch.", ""))
    strides, count = [0] * x.dim(), 1
    for d in reversed(batch_dims):
        strides[d] = count * out.stride(0)
        count *= sizes[d]
    for i, d in enumerate(dim):
        strides[d] = out.stride(i + 1)
    out.as_strided_(list(sizes), strides)


def _has_to_be_copied(batches: Tensor, signal: Sequence[int], *, onesided: bool) -> bool:
    """Whether no enclosing array of cuFFT's advanced layout has the input as its part (`as_cufft_embed`)."""
    if batches.dtype in (torch.float16, torch.complex32):
        return not batches.is_contiguous()
    last = batches.stride(-1)
    if last <= 0 or (batches.size(0) != 1 and batches.stride(0) == 0):
        return True
    whole = [batches.size(0), *signal[:-1], signal[-1] // 2 + 1 if onesided else signal[-1]]
    for i in range(len(signal) - 1, 0, -1):
        if whole[i] == 1:
            continue
        stride = batches.stride(i)
        if stride <= 0 or stride % last:
            return True
        last = stride
    return False

"""Fourier transforms by cuFFT: which copies and buffers they take, and how their results lie in memory.

Source: torch 2.13 aten/src/ATen/native/cuda/SpectralOps.cpp and CuFFTPlanCache.h. cuFFT's own work area comes from the
caching allocator; how large it is nobody outside of cuFFT knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda, like_meta

_MOST_DIMS = 3
"""So many dims are transformed at once (cufft_max_ndim)."""
_CONTIGUOUS = torch.contiguous_format

Tensor = torch.Tensor


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
        result: Tensor = like_meta("_fft_r2c", x, dim, normalization, onesided)
        return result
    last, halves = dim[-1], list(x.shape)
    halves[last] = x.size(last) // 2 + 1
    sizes = halves if onesided else list(x.shape)
    out = x.new_empty(sizes, dtype=x.dtype.to_complex())
    working = x if _is_aligned_for_complex(x) else _contiguous_along(x, last)
    if _is_planned_whole(dim):
        _transform(out, working, sizes, dim)
    else:
        out = _real_to_complex_by_parts(out, working, halves, dim)
    if not onesided and out.size(last) != x.size(last):
        return out.new_empty(x.shape)
    return out


def _real_to_complex_by_parts(out: Tensor, working: Tensor, sizes: Sequence[int], dim: Sequence[int]) -> Tensor:
    """The last dim from real to complex, then the others as complex numbers."""
    _transform(out, working, sizes, dim[-1:])
    spare, left = torch.empty_like(out, memory_format=_CONTIGUOUS), list(dim[:-1])
    while left:
        out, working = spare, out
        left.sort(key=working.stride, reverse=True)
        now, left = left[-_MOST_DIMS:], left[:-_MOST_DIMS]
        _transform(out, working, sizes, now)
        spare = working
    return out


@cuda("_fft_c2r")
def complex_to_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """The input is always copied: such transforms may write to it."""
    if x.dtype is torch.bfloat16:
        result: Tensor = like_meta("_fft_c2r", x, dim, normalization, last_dim_size)
        return result
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


def _is_aligned_for_complex(x: Tensor) -> bool:
    return x.data_ptr() % (2 * x.element_size()) == 0


def _contiguous_along(x: Tensor, dim: int) -> Tensor:
    return x.movedim(dim, -1).clone(memory_format=_CONTIGUOUS).movedim(-1, dim)


def _transform(out: Tensor, x: Tensor, sizes: Sequence[int], dim: Sequence[int]) -> None:
    """`_exec_fft`: batches first, in the order of their strides; `out` gets the strides that cuFFT writes in."""
    batch_dims = sorted((d for d in range(x.dim()) if d not in dim), key=x.stride, reverse=True)
    batches = x.permute(*batch_dims, *dim).reshape([-1, *(x.size(d) for d in dim)])
    signal = [max(batches.size(i + 1), sizes[d]) for i, d in enumerate(dim)]
    out.resize_([batches.size(0), *(sizes[d] for d in dim)])
    is_half = batches.is_complex() and batches.size(-1) != signal[-1]
    if _has_to_be_copied(batches, signal, onesided=is_half):
        batches = batches.clone(memory_format=_CONTIGUOUS)
    workspace = workspaces.take("cufft", "cuFFT", [batches], f"signal={signal} to={out.dtype}".replace("torch.", ""))
    del workspace
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

"""The target `cpu`: what a CPU build does otherwise than CUDA, for tests against real runs on a CPU."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from planner import upstream
from planner.paper.kernels import training_operators  # noqa: F401
from planner.paper.kernels.table import cpu, like_meta
from planner.upstream import torch_releases

# oneDNN lays tensors out anew, differently on each processor: runs to be compared with paper have it off
# (`torch.backends.mkldnn.enabled = False`). Sources, torch 2.13, aten/src/ATen/native: Convolution.cpp (groups one by
# one), ConvolutionMM2d.cpp, NaiveConvolutionTranspose2d.cpp, ConvolutionMM3d.cpp.
Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class _Geometry:
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]

    def result(self, rows: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """Spatial sizes of what comes out."""
        each = zip(rows, kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        if self.transposed:
            return [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in each]
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in each]

    def needs_columns(self, kernel: Sequence[int]) -> bool:
        """A kernel of one element that moves by one reads the input as it lies."""
        return not (
            len(kernel) == 2 and set(kernel) == {1} and set(self.stride) == {1} and set(self.padding) == {0}
        )  # fmt: skip


def convolution(
    x: Tensor, weight: Tensor, _bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    how, flat, x, weight = _spatial(x.contiguous(), weight, stride, padding, dilation, transposed, output_padding)
    if groups == 1:
        result = _forward(x, weight, how)
    else:
        parts = [_forward(_part(x, 1, g, groups), _part(weight, 0, g, groups), how) for g in range(groups)]
        result = torch.cat(parts, 1)
    return result.squeeze(2) if flat else result


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, _bias_sizes: list[int] | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, wanted: list[bool],
) -> Grads:  # fmt: skip
    grad, x = grad.contiguous(), x.contiguous()
    how, flat, x, weight = _spatial(x, weight, stride, padding, dilation, transposed, output_padding)
    grad = grad.unsqueeze(2) if flat else grad
    if groups == 1:
        of_input, of_weight, of_bias = _backward(grad, x, weight, how, wanted)
    else:
        parts = [
            _backward(_part(grad, 1, g, groups), _part(x, 1, g, groups), _part(weight, 0, g, groups), how, wanted)
            for g in range(groups)
        ]
        of_input = _join_parts([part[0] for part in parts], 1)
        of_weight = _join_parts([part[1] for part in parts], 0)
        of_bias = _join_parts([part[2] for part in parts], 0)
    if not flat:
        return of_input, of_weight, of_bias
    return _flat(of_input), _flat(of_weight), of_bias


def _spatial(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], transposed: bool,
    output_padding: list[int],
) -> tuple[_Geometry, bool, Tensor, Tensor]:  # fmt: skip
    """In one dim the tensors get a second one of size 1, in front."""
    flat = x.dim() == 3
    if flat:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        stride, dilation = [1, *stride], [1, *dilation]
        padding, output_padding = [0, *padding], [0, *output_padding]
    dims = x.dim() - 2
    stride, padding, dilation, output_padding = (
        given * dims if len(given) == 1 else given for given in (stride, padding, dilation, output_padding)
    )  # `padding="valid"` says zero once for all dims
    return _Geometry(stride, padding, dilation, transposed, output_padding), flat, x, weight


def _forward(x: Tensor, weight: Tensor, how: _Geometry) -> Tensor:
    kernel, rows = list(weight.shape[2:]), list(x.shape[2:])
    sizes = how.result(rows, kernel)
    if how.transposed:
        result = x.new_empty(x.size(0), weight.size(1), *sizes)
        columns = x.new_empty(x.size(0), weight.size(1) * math.prod(kernel), math.prod(rows))
    else:
        columns = x.new_empty(_columns(x.size(0), weight, sizes)) if how.needs_columns(kernel) else x
        result = x.new_empty(x.size(0), weight.size(0), *sizes)
    del columns
    return result


def _backward(grad: Tensor, x: Tensor, weight: Tensor, how: _Geometry, wanted: list[bool]) -> Grads:
    kernel = list(weight.shape[2:])
    own_columns = len(kernel) == 3 or how.transposed
    if how.transposed:
        columns = [weight.size(1) * math.prod(kernel), math.prod(x.shape[2:])]
    else:
        columns = _columns(x.size(0), weight, list(grad.shape[2:]))
    of_input = of_weight = of_bias = None
    if wanted[0]:
        of_input = torch.empty_like(x)
        if own_columns:
            x.new_empty(columns)
    if wanted[2]:
        of_bias = grad.new_empty(grad.size(1))
    if wanted[1]:
        of_weight = torch.empty_like(weight)
        if how.needs_columns(kernel):
            x.new_empty(columns)
    return of_input, of_weight, of_bias


def _columns(batch: int, weight: Tensor, sizes: list[int]) -> list[int]:
    return [batch, weight.size(1) * math.prod(weight.shape[2:]), math.prod(sizes)]


def _part(tensor: Tensor, dim: int, group: int, groups: int) -> Tensor:
    size = tensor.size(dim) // groups
    return tensor.narrow(dim, group * size, size).contiguous()


def _join_parts(parts: list[Tensor | None], dim: int) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known, dim) if known else None


def _flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.squeeze(2)


# Source: torch 2.13 aten/src/ATen/native/Dropout.cpp (no fused kernel outside CUDA): noise like the input, then the
# product.
@cpu("native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if p == 0 or train is False:
        return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    noise = torch.empty_like(x)
    return torch.empty_like(x), noise


@cpu("native_dropout_backward")
def native_dropout_backward(grad: Tensor, _mask: Tensor, _scale: float) -> Tensor:
    return torch.empty_like(grad)


# Sources, torch 2.13: aten/src/ATen/native/layer_norm.cpp (rms_norm_composite), Normalization.cpp.
def rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """The composite that runs where there is no fused kernel."""
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    small = x.dtype in (torch.float16, torch.bfloat16)
    upcast = x.float() if small else x
    epsilon = torch.finfo(upcast.dtype).eps if eps is None else eps
    scale = torch.rsqrt(torch.pow(upcast, 2).mean(dims, keepdim=True).add_(epsilon))
    result = upcast.mul(scale)
    if weight is not None:
        result = result.mul(weight)
    return result.type_as(x)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Any, var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: float, wanted: list[bool],
) -> Any:  # fmt: skip
    """In training, products of the size of the input live while the gradient is made."""
    grads = like_meta(
        "native_batch_norm_backward", grad, x, weight, mean, var, save_mean, save_invstd, train, eps, wanted
    )
    if train and wanted[0]:
        torch.empty_like(x)
    return grads


for _operator in ("topk", "_cdist_backward", "_pdist_backward", "_embedding_bag_backward"):
    cpu(_operator)(partial(like_meta, _operator))


# Source: torch 2.13 aten/src/ATen/native/cpu/SortingKernel.cpp, DistanceOpsKernel.cpp, IndexKernel.cpp, native/
# EmbeddingBag.cpp, TensorFactories.cpp.
@cpu("masked_scatter_")
def masked_scatter(into: Tensor, _mask: Tensor, _source: Tensor) -> Tensor:
    return into


@cpu("randperm.generator_out")
def permutation(n: int, *, out: Tensor, **_: Any) -> Tensor:
    torch.ops.paper.forget_value(out)
    return out.resize_(n)


_INSTEAD: dict[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "native_batch_norm_backward": batch_norm_backward,
}


@contextmanager
def _operators() -> Iterator[None]:
    """Operators inside which a backend is chosen, below autograd; at the end CUDA's are in force again.

    Not a dispatch mode: with one, autograd adds gradients up out of place (torch 2.13,
    aten/src/ATen/TensorSubclassLikeUtils.h).
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, instead in _INSTEAD.items():
            library.impl(name, instead, "CUDA")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def as_on_cpu() -> Iterator[None]:
    """Inside, the step takes a CPU's way: optimizers loop over parameters, norms and convolutions are the CPU's."""
    replaced: dict[str, Callable[..., Any]] = {
        "torch.optim.optimizer:_get_foreach_kernels_supported_devices": list,
        # Before torch 2.8 there is no fused kernel on any device.
        "torch.nn.functional:rms_norm": rms_norm if torch_releases.since(2, 8) else torch.nn.functional.rms_norm,
    }
    with (
        upstream.patch_targets("cpu target", replaced=replaced),
        torch.backends.cudnn.flags(enabled=False),
        _operators(),
    ):
        yield

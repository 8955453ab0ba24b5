"""apex: fused norms, rotary embeddings, FusedAdam, FusedSGD, and products that add to a weight's gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from planner.paper.outside.operators import (
    bytes_of_sums,
    kernel,
    norms_of_tensors,
    record_operator,
    refuse,
    unknown_workspace,
)

# Source, apex at the commit 6424da3 (2026-07): apex/normalization/fused_layer_norm.py, csrc/layer_norm_cuda.cpp,
# csrc/layer_norm_cuda_kernel.cu (part_size).
Tensor = torch.Tensor

_PARTS = 16


def _statistics(given: Tensor, rows: int) -> Tensor:
    """One figure a row, in float32 for 16-bit inputs."""
    half = given.dtype in (torch.float16, torch.bfloat16)
    return torch.empty(rows, dtype=torch.float32 if half else given.dtype, device=given.device)


class _Norm(torch.autograd.Function):
    """Layer norm with a mean, RMS norm without; `weight` and `bias` may be None."""

    @staticmethod
    def forward(
        context: Any, given: Tensor, weight: Tensor | None, bias: Tensor | None, columns: int, has_mean: bool,
        keeps_output: bool, as_weight: bool,
    ) -> Tensor:  # fmt: skip
        given = given.contiguous()
        weight, bias = (None if tensor is None else tensor.contiguous() for tensor in (weight, bias))
        with record_operator("apex::norm_fwd"):
            dtype = weight.dtype if as_weight and weight is not None else given.dtype
            out = torch.empty_like(given, dtype=dtype)
            rows = given.numel() // columns
            mean = _statistics(given, rows) if has_mean else None
            spread = _statistics(given, rows)
        context.save_for_backward(out if keeps_output else given, weight, bias, None if keeps_output else mean, spread)
        context.columns = columns
        context.dtype = given.dtype
        return out

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight, bias, _, spread = context.saved_tensors
        grad = grad.contiguous()
        with record_operator("apex::norm_bwd"):
            of_input = torch.empty_like(kept, dtype=context.dtype)
            gradients = [None if tensor is None else torch.empty_like(tensor) for tensor in (weight, bias)]
            count = sum(gradient is not None for gradient in gradients)
            parts = [
                torch.empty(_PARTS, context.columns, dtype=spread.dtype, device=spread.device) for _ in range(count)
            ]
        del parts
        return of_input, *gradients, None, None, None, None


class FusedLayerNormAffineFunction(_Norm):
    """Layer norm with weight and bias."""

    @staticmethod
    def forward(  # type: ignore[override]
        context: Any, input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: int | Sequence[int],
        eps: float = 1e-6, memory_efficient: bool = False,  # noqa: ARG004
    ) -> Tensor:  # fmt: skip
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        return _Norm.forward(context, input, weight, bias, torch.Size(shape).numel(), True, memory_efficient, False)

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_Norm.backward(context, grad)[:3], None, None, None


def fused_layer_norm_affine(
    input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: int | Sequence[int], eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Any:  # fmt: skip
    """Layer norm with weight and bias as a function."""
    settings = normalized_shape, eps, memory_efficient
    return FusedLayerNormAffineFunction.apply(input, weight, bias, *settings)  # type: ignore[no-untyped-call]


class FastLayerNormFN(torch.autograd.Function):
    """The persistent layer norm of apex.contrib (apex/contrib/layer_norm/layer_norm.py,
    contrib/csrc/layer_norm/ln_api.cpp)."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, gamma: Tensor, beta: Tensor, _epsilon: float, memory_efficient: bool = False
    ) -> Tensor:
        x, gamma, beta = x.contiguous(), gamma.contiguous(), beta.contiguous()
        rows = x.numel() // gamma.numel()
        with record_operator("apex::ln_fwd"):
            out = torch.empty_like(x, dtype=gamma.dtype)
            mean, spread = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        if memory_efficient:
            context.save_for_backward(out, gamma, spread, beta)
        else:
            context.save_for_backward(x, gamma, spread, mean)
        return out

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, gamma, _, _ = context.saved_tensors
        grad, columns = grad.contiguous(), gamma.numel()
        with record_operator("apex::ln_bwd"):
            gradients = torch.empty_like(kept), torch.empty_like(gamma), torch.empty_like(gamma)
            kernel = "apex's persistent layer norm, backward: beyond two blocks a multiprocessor"
            unknown_workspace("apex", kernel, 2 * bytes_of_sums(columns))
        return (*gradients, None, None)[: len(context.needs_input_grad)]


class _FusedNorm(nn.Module):
    has_mean = True
    as_weight = False

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps = torch.Size(shape), eps
        self.elementwise_affine, self.memory_efficient = elementwise_affine, memory_efficient
        self.register_parameter("weight", nn.Parameter(torch.ones(shape)) if elementwise_affine else None)
        if self.has_mean:
            self.register_parameter("bias", nn.Parameter(torch.zeros(shape)) if elementwise_affine else None)

    def forward(self, input: Tensor) -> Any:
        tensors = (input, self.weight, getattr(self, "bias", None))
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            tensors = tuple(tensor if tensor is None else tensor.to(dtype) for tensor in tensors)  # type: ignore[assignment]
        with torch.autocast(kind, enabled=False):
            return _Norm.apply(
                *tensors, self.normalized_shape.numel(), self.has_mean, self.memory_efficient, self.as_weight
            )  # type: ignore[no-untyped-call]


class FusedLayerNorm(_FusedNorm):
    """Layer norm whose result has the dtype of its input."""


class FusedRMSNorm(_FusedNorm):
    """RMS norm whose result has the dtype of its input."""

    has_mean = False


class _Mixed(_FusedNorm):
    as_weight = True

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, *, memory_efficient: bool = False, **named: Any
    ) -> None:
        if not named.pop("elementwise_affine", True):
            raise RuntimeError("norms of mixed dtypes have weights: elementwise_affine=True")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_Mixed):
    """Layer norm whose result has the dtype of its weight."""


class MixedFusedRMSNorm(_Mixed):
    """RMS norm whose result has the dtype of its weight."""

    has_mean = False


# Source, apex at the commit 6424da3 (2026-07): apex/optimizers/fused_adam.py, csrc/multi_tensor_adam.cu.
class FusedAdam(torch.optim.Optimizer):
    """Adam and AdamW. Raises TraceError for its capturable form."""

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False,
        set_grad_none: bool = True, capturable: bool = False, master_weights: bool = False,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if capturable or master_weights:
            refuse(
                "FusedAdam of apex", "capturable=True and master_weights=True are not modelled", "the defaults of both"
            )
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
                    "weight_decay": weight_decay}  # fmt: skip
        super().__init__(params, defaults)
        self.adam_w_mode, self.set_grad_none = int(adam_w_mode), set_grad_none
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device="cuda")

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **_unused: Any) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter]["exp_avg"] = torch.zeros_like(parameter).float()
                    self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter).float()
                torch.ops.paper.forget_value(parameter)
        return loss


# Source, apex at the commit 6424da3 (2026-07): apex/optimizers/fused_sgd.py, csrc/multi_tensor_sgd_kernel.cu.
class FusedSGD(torch.optim.Optimizer):
    """SGD, which keeps a momentum of each parameter in float16 and float32 even where that is 0."""

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, wd_after_momentum: bool = False, materialize_master_grads: bool = True,  # noqa: ARG002
        set_grad_none: bool = False,
    ) -> None:  # fmt: skip
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                    "nesterov": nesterov}  # fmt: skip
        super().__init__(params, defaults)
        self.set_grad_none = set_grad_none
        device = self.param_groups[0]["params"][0].device
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int32, device=device)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        # Where it is not told to forget gradients it leaves that to torch, which does since 2.0.
        super().zero_grad(set_to_none=set_to_none is not False)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for dtype in (torch.float16, torch.float32):
                for parameter in group["params"]:
                    if parameter.dtype == dtype and parameter.grad is not None:
                        state = self.state[parameter]
                        if "momentum_buffer" not in state:
                            state["momentum_buffer"] = torch.zeros_like(parameter)
                        torch.ops.paper.forget_value(parameter)
        return loss


class MultiTensorApply:
    """`apex.multi_tensor_apply`: calls a kernel of `amp_C` with a list of lists."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, operator: Callable[..., Any], overflow: Any, lists: Any, *arguments: Any) -> Any:
        return operator(self.chunk_size, overflow, lists, *arguments)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def _in_place(_chunk_size: int, _noop: Tensor, lists: Sequence[Sequence[Tensor]], *_settings: Any) -> None:
    for tensor in itertools.chain.from_iterable(lists):
        torch.ops.paper.forget_value(tensor)


multi_tensor_adam = multi_tensor_scale = multi_tensor_axpby = multi_tensor_sgd = _in_place


@kernel("apex::multi_tensor_l2norm")
def multi_tensor_l2norm(
    chunk_size: int, _noop: Tensor, lists: Sequence[Sequence[Tensor]], per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of all, and with `per_tensor` those of each."""
    return norms_of_tensors(chunk_size, lists[0], per_tensor=per_tensor)


# Source, apex at the commit 6424da3 (2026-07): csrc/megatron/fused_weight_gradient_dense.cpp,
# fused_weight_gradient_dense_cuda.cu. They take torch's handle of cuBLAS, with the workspace that torch's own product
# of the same backward has taken before.
def wgrad_gemm_accum_fp32(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:  # noqa: ARG001
    """Adds to `d_weight` [out, in] the product of two tensors of the same outer dims."""
    torch.ops.paper.forget_value(d_weight)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


# Source, apex at the commit 6424da3 (2026-07): csrc/megatron/{scaled_masked_softmax,scaled_softmax,
# scaled_upper_triang_masked_softmax,generic_scaled_masked_softmax}_cuda.cu.
@kernel("apex::softmax_fwd")
def _softmax(given: Tensor, *_mask_and_scale: Any) -> Tensor:
    return torch.empty(given.shape, dtype=given.dtype, device=given.device)


@kernel("apex::softmax_bwd")
def _softmax_backward(grad: Tensor, kept: Tensor, _scale: Any) -> Tensor:
    """In place of the gradient."""
    grad, kept = grad.contiguous(), kept.contiguous()
    return grad


@kernel("apex::softmax_bwd")
def _masked_softmax_backward(grad: Tensor, kept: Tensor, _scale: Any) -> Tensor:
    grad, kept = grad.contiguous(), kept.contiguous()
    return torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)


# Source, apex at the commit 16fadfe (2025-12), the last that has it: apex/transformer/functional/fused_rope.py,
# csrc/megatron/fused_rotary_positional_embedding_cuda.cu.
class _Rotation(torch.autograd.Function):
    """Rotates a tensor; `kept` is what its kernel takes besides, `batch_first` how the result lies in memory."""

    @staticmethod
    def forward(context: Any, given: Tensor, batch_first: bool, *kept: Tensor) -> Tensor:
        context.save_for_backward(*kept)
        context.batch_first, context.count = batch_first, len(kept)
        return _rotated(given, batch_first)

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _rotated(grad, context.batch_first), None, *[None] * context.count


@kernel("apex::rope")
def _rotated(given: Tensor, batch_first: bool) -> Tensor:
    if not batch_first:
        return torch.empty(given.shape, dtype=given.dtype, device=given.device)
    return torch.empty(given.transpose(0, 1).shape, dtype=given.dtype, device=given.device).transpose(0, 1)


def fused_apply_rotary_pos_emb(t: Tensor, freqs: Tensor, transpose_output_memory: bool = False) -> Any:
    """[sequence, batch, heads, dims] by frequencies [sequence, 1, 1, dims]."""
    return _Rotation.apply(t, transpose_output_memory, freqs)  # type: ignore[no-untyped-call]


def fused_apply_rotary_pos_emb_cached(
    t: Tensor, cos_: Tensor, sin_: Tensor, transpose_output_memory: bool = False
) -> Any:
    """The same by cosines and sines."""
    return _Rotation.apply(t, transpose_output_memory, cos_, sin_)  # type: ignore[no-untyped-call]


def fused_apply_rotary_pos_emb_thd(t: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Any:
    """Packed sequences [tokens, heads, dims]."""
    return _Rotation.apply(t, False, cu_seqlens, freqs)  # type: ignore[no-untyped-call]


def _rows_a_block(_rows: int, columns: int, _batches: int, _heads: int) -> int:
    """Rows of scores that a block of 128 threads takes: csrc/megatron/scaled_masked_softmax.h, get_batch_per_block."""
    power = 1 << (columns - 1).bit_length()
    return 128 // min(power, 32) * (2 if power <= 128 else 1)


SOFTMAX: dict[str, Any] = {"forward": _softmax, "backward": _softmax_backward}
MASKED_SOFTMAX: dict[str, Any] = {
    "forward": _softmax, "backward": _masked_softmax_backward, "get_batch_per_block": _rows_a_block
}  # fmt: skip

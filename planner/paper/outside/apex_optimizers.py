"""apex's FusedAdam: two states in float32 for every parameter, and an update in place.

Source, apex at the commit 6424da3 (2026-07): apex/optimizers/fused_adam.py, csrc/multi_tensor_adam.cu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from planner.paper.outside.operators import refuse


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
        return loss


class MultiTensorApply:
    """`apex.multi_tensor_apply`: calls a kernel of `amp_C` with a list of lists."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, operator: Callable[..., Any], overflow: Any, lists: Any, *arguments: Any) -> Any:
        return operator(self.chunk_size, overflow, lists, *arguments)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def _in_place(*_arguments: Any) -> None:
    """Writes to what it is given."""


multi_tensor_adam = multi_tensor_scale = multi_tensor_axpby = multi_tensor_sgd = _in_place

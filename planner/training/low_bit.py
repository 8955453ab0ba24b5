"""Models optimizers of bitsandbytes and torchao: they allocate what theirs allocate and update nothing.

Neither package is needed, nor the CUDA kernels and compiled functions that make the update in place; what their step
takes beside the state is a few bytes for bitsandbytes, and for torchao whatever torch.compile makes of it, which is not
counted. Facts from bitsandbytes 0.44 to 0.50.2 (bitsandbytes/optim/optimizer.py: blocks of 256) and
torchao (torchao/optim/adam.py, subclass_8bit.py, subclass_4bit.py, subclass_fp8.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_LEAST = 4096
"""Both keep the state of smaller tensors in full."""
_PAGED_FROM = 100_000
"""Elements from which a paged optimizer of bitsandbytes keeps a state in unified memory."""
_BNB_BLOCK = 256


class _StateModel(torch.optim.Optimizer):
    """Takes the state of a parameter when it first has a gradient."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter].update(self._state_of(parameter))
                self._after_update(parameter)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        raise NotImplementedError

    def _after_update(self, parameter: Tensor) -> None:
        """After the update of one parameter."""


class _BitsAndBytes(_StateModel):
    paged = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        min_8bit_size: int = _LEAST,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        if any(isinstance(each, DTensor) for group in self.param_groups for each in group["params"]):
            raise ValueError("the kernels of bitsandbytes take whole tensors, not the shards of a DTensor")
        self._least = min_8bit_size
        self._maps: list[Tensor] = []

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        if parameter.numel() < self._least:
            return {"step": 0, "state1": self._buffer(parameter, torch.float32),
                    "state2": self._buffer(parameter, torch.float32)}  # fmt: skip
        if not self._maps:
            # One table for signed and one for unsigned values serve all parameters.
            self._maps = [torch.zeros(256, device=parameter.device) for _ in range(2)]
        blocks = -(-parameter.numel() // _BNB_BLOCK)
        return {
            "step": 0,
            "state1": self._buffer(parameter, torch.uint8),
            "qmap1": self._maps[0],
            "state2": self._buffer(parameter, torch.uint8),
            "qmap2": self._maps[1],
            "absmax1": torch.zeros(blocks, device=parameter.device),
            "absmax2": torch.zeros(blocks, device=parameter.device),
        }

    def _buffer(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        if self.paged and parameter.numel() >= _PAGED_FROM:
            # Unified memory (cudaMallocManaged), which no allocator of torch knows and which moves to the host.
            return torch.empty(parameter.shape, dtype=dtype, device="meta")
        return torch.zeros_like(parameter, dtype=dtype)

    def _after_update(self, parameter: Tensor) -> None:
        if parameter.device.type == "cuda":
            torch.cuda.synchronize()


class _Paged(_BitsAndBytes):
    paged = True


class _TorchAo(_StateModel):
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        block_size: int = 256,
        bf16_stochastic_round: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        self._names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 3 if amsgrad else 2]
        self._block = block_size
        self._rounds = bf16_stochastic_round

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        state: dict[str, Any] = {"step": torch.tensor(0.0)}
        for name in self._names:
            if local.numel() >= _LEAST and local.numel() % self._block == 0:
                state |= {f"{name}.{part}": tensor for part, tensor in self._low(local).items()}
            else:
                state[name] = torch.zeros_like(local)
        return state

    def _low(self, local: Tensor) -> dict[str, Tensor]:
        """Each state has its own table of the values that its codes stand for."""
        return {
            "codes": torch.zeros(local.shape, dtype=torch.uint8, device=local.device),
            "scale": self._scales(local),
            "qmap": torch.zeros(256, device=local.device),
        }

    def _scales(self, local: Tensor) -> Tensor:
        return torch.zeros(local.numel() // self._block, device=local.device)


class _TorchAo4bit(_TorchAo):
    def __init__(self, params: Any, *arguments: Any, block_size: int = 128, **named: Any) -> None:
        super().__init__(params, *arguments, block_size=block_size, **named)

    def _low(self, local: Tensor) -> dict[str, Tensor]:
        return {
            "codes": torch.zeros(local.numel() // 2, dtype=torch.uint8, device=local.device),
            "scale": self._scales(local),
            "qmap": torch.zeros(16, device=local.device),
        }


class _TorchAoFp8(_TorchAo):
    def _low(self, local: Tensor) -> dict[str, Tensor]:
        codes = torch.zeros(local.shape, dtype=torch.float8_e4m3fn, device=local.device)
        return {"codes": codes, "scale": self._scales(local)}


MODELLED: dict[str, type[torch.optim.Optimizer]] = {
    "bitsandbytes.Adam8bit": _BitsAndBytes,
    "bitsandbytes.AdamW8bit": _BitsAndBytes,
    "bitsandbytes.PagedAdam8bit": _Paged,
    "bitsandbytes.PagedAdamW8bit": _Paged,
    "torchao.Adam4bit": _TorchAo4bit,
    "torchao.Adam8bit": _TorchAo,
    "torchao.AdamFp8": _TorchAoFp8,
    "torchao.AdamW4bit": _TorchAo4bit,
    "torchao.AdamW8bit": _TorchAo,
    "torchao.AdamWFp8": _TorchAoFp8,
}
"""By the name that a job writes; Adam and AdamW differ in their arithmetic only."""

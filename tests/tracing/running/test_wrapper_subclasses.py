"""Parameters and optimizer state that are wrapper subclasses: their memory is that of the tensors that they hold."""

from __future__ import annotations

from program_runs import Program, judge

from planner.events import Category

QUANTIZED = """
import torch
from torch import nn
from torch.utils import _pytree as pytree

# A byte for each element, and a scale for each 256 of them.
class Quantized(torch.Tensor):
    @staticmethod
    def __new__(cls, codes, scale, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, device=codes.device, dtype=torch.float32)

    def __init__(self, codes, scale, shape):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], [self.shape]

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size=None, stride=None):
        return cls(inner["codes"], inner["scale"], *context)

    def wide(self):
        return (self.codes.float().view(-1, 256) * self.scale[:, None]).view(self.shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func is torch.ops.aten.copy_.default:
            args[0].codes.copy_(args[1].view(-1).to(torch.uint8))
            return args[0]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes.detach(), args[0].scale.detach(), args[0].shape)
        args, kwargs = pytree.tree_map_only(cls, lambda t: t.wide(), (args, kwargs or {}))
        return func(*args, **kwargs)
"""
MOMENTUM = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state, count = self.state[parameter], parameter.numel()
            if not state:
                codes = torch.zeros(count, dtype=torch.uint8, device="cuda")
                state["momentum"] = Quantized(codes, torch.ones(count // 256, device="cuda"), parameter.shape)
            momentum = state["momentum"].wide().lerp(parameter.grad, 0.1)
            state["momentum"].copy_(momentum)
            parameter.sub_(momentum)

model = nn.Linear(1024, 1024, bias=False).cuda()
optimizer = Momentum(model.parameters())
while True:
    model(torch.randn(16, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FROZEN_BASE = """
base = nn.Linear(1024, 1024, bias=False)
codes = torch.zeros(1024 * 1024, dtype=torch.uint8, device="cuda")
wrapped = Quantized(codes, torch.ones(4096, device="cuda"), torch.Size([1024, 1024]))
base.weight = nn.Parameter(wrapped, requires_grad=False)
model = nn.Sequential(base, nn.Linear(1024, 16, bias=False).cuda())
optimizer = torch.optim.AdamW(model[1].parameters())
while True:
    model(torch.randn(16, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MIB = 1 << 20


def test_state_of_an_optimizer_has_the_bytes_of_its_inner_tensors(program: Program) -> None:
    """A byte for each of 1024 x 1024 elements, four for each 256 of them."""
    (ranks,) = judge("python", program(QUANTIZED + MOMENTUM), steps=3, writes=True).rank_classes

    kept = [holder for holder in ranks.holders if holder.category is Category.OPTIMIZER_STATE]
    assert ranks.at_peak[Category.OPTIMIZER_STATE] == MIB + 4 * 4096
    assert [(each.module, each.dtype, each.bytes) for each in kept] == [
        ("weight.momentum", "uint8", MIB), ("weight.momentum", "float32", 4 * 4096),
    ]  # fmt: skip


def test_a_frozen_parameter_has_the_bytes_of_its_inner_tensors(program: Program) -> None:
    """Beside 16 x 1024 trained elements in float32, and their two moments with a step each."""
    (ranks,) = judge("python", program(QUANTIZED + FROZEN_BASE), steps=3, writes=True).rank_classes

    assert ranks.at_peak[Category.PARAMETER] == MIB + 4 * 4096 + 4 * 16 * 1024
    assert ranks.at_peak[Category.OPTIMIZER_STATE] == 2 * 4 * 16 * 1024

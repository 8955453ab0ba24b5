"""Modules that a program calls inside torch.func's transforms, whose tensors wrap others and have no memory."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.events import Alloc, Category, Role

PER_SAMPLE = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.ReLU(), nn.Linear(512, 10, bias=False)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, targets = torch.randn(64, 256, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")

def compute_loss(parameters, sample, target):
    predictions = functional_call(model, parameters, (sample.unsqueeze(0),))
    return nn.functional.cross_entropy(predictions, target.unsqueeze(0))

for _ in range(4):
    detached = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = vmap(grad(compute_loss), in_dims=(None, 0, 0))(detached, data, targets)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].mean(0)
    optimizer.step()
    optimizer.zero_grad()
    del gradients
"""
"""As PyTorch's tutorial on gradients of each sample has it."""


def test_gradients_of_each_sample_are_planned(run: Run, program: Program) -> None:
    found = run(f"python {program(PER_SAMPLE)}")

    assert found.iterations == 3
    requested = {each.block: each.requested_bytes for each in found.trace.events if isinstance(each, Alloc)}
    parameters = {256 * 512 * 4, 512 * 10 * 4}
    told = [each for each in found.trace.events if isinstance(each, Role)]
    assert {requested[each.block] for each in told if each.category is Category.PARAMETER} == parameters
    assert {requested[each.block] for each in told if each.category is Category.GRADIENT} == parameters
    assert {64 * size for size in parameters} <= set(requested.values())


WHOLE = """
import torch
from torch import nn
from torch.func import functional_call, functionalize, grad, hessian, jacrev, jvp, stack_module_state, vjp, vmap

models = [nn.Linear(32, 32).to({device!r}) for _ in range(3)]
model, data = models[0], torch.randn(4, 32, device={device!r})
stacked, buffers = stack_module_state(models)
parameters = dict(model.named_parameters())

def call(parameters, data):
    return functional_call(model, parameters, (data,))

def loss(parameters, data):
    return call(parameters, data).square().mean()

{lines}
step = nn.Linear(32, 32).cuda()
optimizer = torch.optim.SGD(step.parameters(), lr=0.1)
for _ in range(3):
    step(torch.ones(4, 32, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "lines",
    [
        "vmap(call, in_dims=(0, None))(stacked, data)",
        "vmap(grad(loss), in_dims=(0, None))(stacked, data)",
        "vmap(model)(data)",
        "jacrev(call)(parameters, data)",
        "hessian(lambda data: loss(parameters, data))(data[0])",
        "jvp(model, (data,), (data,))",
        "vjp(call, parameters, data)[1](data)",
        "functionalize(model)(data)",
    ],
)
def test_every_transform_may_call_modules(run: Run, program: Program, lines: str, device: str) -> None:
    assert run(f"python {program(WHOLE.format(lines=lines, device=device))}").is_whole

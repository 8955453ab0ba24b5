"""A program that keeps something with every step is found out, and one that does not is not suspected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from program_runs import Run

from planner.allocator.long_runs.growth import growth_of
from planner.allocator.rules import Rules

LOOP = """
import torch
from torch.nn.functional import cross_entropy
model = torch.nn.Linear(256, 1000).cuda()
optimizer = torch.optim.AdamW(model.parameters())
outputs, losses, best = [], [], None
for step in range(9):
    inputs, labels = torch.randn(64, 256).cuda(), torch.randint(0, 1000, (64,)).cuda()
    output = model(inputs)
    loss = cross_entropy(output, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {kept}
"""
OUTPUT_BYTES = 64 * 1000 * 4


@pytest.mark.parametrize(
    ("kept", "bytes_per_step", "maker"),
    [
        ("outputs.append(output)", OUTPUT_BYTES, "aten.addmm"),
        ("losses.append(loss)", 512, "aten.nll_loss_forward"),
        ("losses.append(loss.item())", 0, ""),
        ("outputs = [*outputs[-1:], output]", 0, ""),
        ("best = output.detach()", 0, ""),
    ],
)
def test_what_a_program_keeps(
    run: Run, program: Callable[[str], str], kept: str, bytes_per_step: int, maker: str
) -> None:
    found = run(f"python {program(LOOP.format(kept=kept))}", steps=9)

    growth = growth_of(found.trace.written_out(), Rules())

    assert ((growth.bytes_per_step, growth.origin.op) if growth else (0, "")) == (bytes_per_step, maker)

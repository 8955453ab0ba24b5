"""Programs with torchvision's own CUDA kernels: regions of interest, overlapping boxes, deformed convolutions."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.events import Alloc

TRAINING = """
import torch, torchvision

boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [2.0, 2.0, 20.0, 20.0]], device="cuda")
pictures = torch.rand(2, 16, 32, 32, device="cuda", requires_grad=True)
convolution = torch.nn.Conv2d(16, 16, 3, padding=1).cuda()
optimizer = torch.optim.SGD(convolution.parameters(), 0.1)
for _ in range(3):
    features = convolution(pictures)
    {use}
    features.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("use", "size_bytes"),
    [
        ("features = torchvision.ops.roi_align(features, [boxes, boxes], 7)", 4 * 16 * 7 * 7 * 4),
        ("features = torchvision.ops.roi_pool(features, [boxes, boxes], 7)", 4 * 16 * 7 * 7 * 4),
        ("features = torchvision.ops.deform_conv2d(features, torch.zeros(2, 18, 32, 32, device='cuda'), "
         "convolution.weight, padding=1)", 2 * 16 * 32 * 32 * 4),
        ("features = features[:, : len(torchvision.ops.nms(boxes, torch.rand(2, device='cuda'), 0.5))]", 2 * 8),
    ],
    ids=["roi_align", "roi_pool", "deform_conv2d", "nms"],
)  # fmt: skip
def test_its_kernels_are_planned(use: str, size_bytes: int, program: Program, run: Run) -> None:
    ran = run(f"python {program(TRAINING.format(use=use))}")

    assert ran.iterations == 3
    assert size_bytes in {event.requested_bytes for event in ran.trace.written_out() if isinstance(event, Alloc)}

"""torchvision's wheels beside a torch without CUDA: they name operators whose library cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable

from program_runs import Run

LINES = """
import torch
@torch.library.register_fake("torchvision::nms")
def shape_of_nms(boxes, scores, threshold):
    return boxes.new_empty(3, dtype=torch.long)
assert torch.ops.torchvision.nms(torch.empty(9, 4, device="meta"), torch.empty(9, device="meta"), 0.5).shape == (3,)
try:
    torch.library.register_fake("nowhere::operator")(shape_of_nms)
except RuntimeError as error:
    assert "nowhere::operator does not exist" in str(error)
else:
    raise AssertionError("another library's operator was declared")
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(2, 4, device="cuda")).sum().backward()
optimizer.step()
"""


def test_they_are_declared(run: Run, program: Callable[[str], str]) -> None:
    assert run(f"python {program(LINES)}").iterations == 1

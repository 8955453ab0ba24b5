"""A model of 200 MB is built on the host and moved; copies of it are kept there, gathered, saved and loaded.

`python host_heavy.py DEVICE FOLDER [width]`
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

DEVICE, FOLDER = sys.argv[1], Path(sys.argv[2])
WIDTH = int(sys.argv[3]) if len(sys.argv) > 3 else 2048

model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(12))).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
average: dict[str, torch.Tensor] = {}
batches = DataLoader(TensorDataset(torch.randn(40, WIDTH)), batch_size=8)
for step, (batch,) in enumerate(batches):
    model(batch.to(DEVICE)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        average = {name: each.detach().cpu() for name, each in model.named_parameters()}
    if step == 2:
        state = {"model": {name: each.cpu() for name, each in model.state_dict().items()}, "step": step}
        torch.save(state, FOLDER / "all.pt")
        del state
    if step == 3:
        loaded = torch.load(FOLDER / "all.pt", map_location="cpu")
        model.load_state_dict(loaded["model"])
        del loaded

"""Saves a checkpoint, builds everything anew, loads it and goes on."""

import copy
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional


def build():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
    return model, torch.optim.Adam(model.parameters())


def train(model, optimizer, average, steps):
    for _ in range(steps):
        x, y = torch.randn(32, 256).cuda(), torch.randint(0, 10, (32,)).cuda()
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)


path = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")
model, optimizer = build()
average = copy.deepcopy(model)
train(model, optimizer, average, 1)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, path)
assert os.stat(path).st_size > 4 * 256 * 512
model, optimizer = build()
loaded = torch.load(path, map_location="cuda", weights_only=True)
model.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
torch.set_rng_state(loaded["rng"].cpu())
train(model, optimizer, average, 100)

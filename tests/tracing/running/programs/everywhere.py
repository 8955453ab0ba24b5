"""Trains on a GPU where there is one, else on the CPU, alone or over several ranks, as many scripts do."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("pictures", "ddp", "fsdp"))
parser.add_argument("--steps", type=int, default=4)
options = parser.parse_args()

has_gpu = torch.cuda.is_available()
local_rank = int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
if options.kind != "pictures":
    dist.init_process_group("nccl" if has_gpu else "gloo")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1))
        self.out = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.out(self.inner(x))


def pictures():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def rows():
    return nn.Sequential(nn.Linear(64, 512), *(Residual(512) for _ in range(3)), nn.Linear(512, 10))


torch.manual_seed(0)
shape = (32, 3, 64, 64) if options.kind == "pictures" else (256, 64)
model = (pictures if options.kind == "pictures" else rows)().to(device)
if options.kind == "ddp":
    model = DistributedDataParallel(model, device_ids=[local_rank] if has_gpu else None)
elif options.kind == "fsdp":
    for block in model[1:-1]:
        fully_shard(block)
    fully_shard(model)
optimizer = (
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if options.kind == "pictures"
    else torch.optim.AdamW(model.parameters())
)
for step in range(options.steps):
    model.train()
    x, y = torch.randn(shape, device=device), torch.randint(0, 10, shape[:1], device=device)
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % 2:
        model.eval()
        with torch.no_grad():
            print(f"step {step}: {model(torch.randn(shape, device=device)).argmax(1).float().mean().item():.2f}")
if dist.is_initialized():
    dist.destroy_process_group()

"""Trains under FullyShardedDataParallel (FSDP 1), whose arguments are options; `trained` is what it has then."""

import argparse
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", default="FULL_SHARD")
parser.add_argument("--original", action="store_true")
parser.add_argument("--mixed", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--unreduced", action="store_true")
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


class Block(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


half = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16) if options.mixed else None
model = FullyShardedDataParallel(
    nn.Sequential(nn.Linear(32, 64), Block(), Block(), nn.Linear(64, 32)).to(device),
    sharding_strategy=ShardingStrategy[options.strategy],
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=half,
    use_orig_params=options.original,
    device_id=device,
)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for _ in range(3):
    for number in range(1, options.accumulate + 1):
        waits = options.unreduced and number < options.accumulate
        with model.no_sync() if waits else nullcontext():
            model(torch.randn(8, 32, device=device)).square().mean().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
trained = SimpleNamespace(model=model, optimizer=optimizer)

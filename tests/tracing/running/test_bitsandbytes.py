"""Programs with bitsandbytes: its own Python code allocates, and takes what the jobs of a spec are planned with."""

from __future__ import annotations

import importlib.util

import pytest
from program_runs import STEP, Program, Run

HAS_IT = importlib.util.find_spec("bitsandbytes") is not None
PROGRAM = """
import torch
torch.zeros(1, device="cuda")
from planner.training import optimizers
from planner.training.models import adapters

def taken(make):
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    made = make()
    stats = torch.cuda.memory_stats()
    return made, stats["requested_bytes.all.current"] - before

def train(optimizer_class):
    parameters = [torch.nn.Parameter(torch.empty(n, device="cuda")) for n in (100, 4096, 300_000)]
    optimizer = optimizer_class(parameters, lr=0.1)
    for each in parameters:
        each.grad = torch.empty_like(each)
    optimizer.step()
    return parameters, optimizer

for name in ("Adam8bit", "AdamW8bit", "PagedAdamW8bit"):
    import bitsandbytes
    kept, real = taken(lambda: train(getattr(bitsandbytes.optim, name)))
    kept, modelled = taken(lambda: train(optimizers.MODELLED[f"bitsandbytes.{name}"]))
    assert real == modelled, (name, real, modelled)

layer = torch.nn.Linear(512, 256, bias=False)
def quantized():
    made = bitsandbytes.nn.Linear4bit(
        512, 256, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=True
    )
    made.load_state_dict(layer.state_dict())
    return made.cuda()
quantized()  # the first one leaves a table of 1 KiB in the package
real_layer, real = taken(quantized)
model_layer, modelled = taken(lambda: adapters.Linear4bit(torch.nn.Linear(512, 256, bias=False, device="cuda")))
assert real == modelled, (real, modelled)

def run(layer):
    given = torch.empty(4096, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    at = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer(given).sum().backward()
    return torch.cuda.max_memory_allocated() - at
run(real_layer), run(model_layer)
assert run(real_layer) == run(model_layer)
"""


@pytest.mark.skipif(not HAS_IT, reason="bitsandbytes is not installed")
def test_the_package_takes_what_its_models_take(run: Run, program: Program) -> None:
    assert run(f"python {program(PROGRAM + STEP)}").iterations > 0

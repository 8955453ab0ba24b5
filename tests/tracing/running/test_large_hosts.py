"""Large models on the host: built, cast, saved and loaded without their memory, and without losing a value."""

from __future__ import annotations

import pytest
import torch
from program_runs import Program, Run
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from planner.tracing.program import storages
from planner.tracing.program.assumptions import About

BEGIN = """
import os, tempfile, torch
import torch.distributed.checkpoint as dcp
from pathlib import Path
from safetensors.torch import load_file, save_file
def taken():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def on_disk(path):
    return sum(os.stat(each).st_blocks * 512 for each in Path(path).parent.rglob(Path(path).name))
folder = tempfile.mkdtemp()
began = taken()
MIB = 2**20
"""
END = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(2, 16384, device="cuda", dtype=next(model.parameters()).dtype)).sum().backward()
optimizer.step()
"""

BUILT = """
model = torch.nn.Linear(16384, 16384)
torch.nn.init.trunc_normal_(model.weight)
torch.nn.init.orthogonal_(model.weight)
model.weight.data.normal_(std=0.02)
model = model.to(torch.bfloat16)
buffer = torch.zeros(256 * MIB)
assert taken() - began < 200 * MIB, taken() - began
assert float(model.weight[-1, -1]) == 0 and float(buffer[-1]) == 0
assert float(torch.empty(1000).normal_().std()) > 0.5
model.cuda()
"""

SAVED = """
model = torch.nn.Linear(16384, 16384).cuda()
values = torch.arange(4 * MIB)
whole = {"weight": model.weight, "bias": model.bias, "values": values, "unwritten": torch.empty(64 * MIB),
         "half": torch.ones(3, dtype=torch.float16)}
torch.save(whole, folder + "/all.pt")
save_file({name: each.detach() for name, each in whole.items()}, folder + "/all.safetensors", metadata={"of": "test"})
dcp.save(whole, checkpoint_id=folder + "/dcp")
assert [on_disk(f"{folder}/{each}") < 40 * MIB for each in ("all.pt", "all.safetensors", "*.distcp")] == [True] * 3
held = taken()
for loaded in (torch.load(folder + "/all.pt", map_location="cpu"), load_file(folder + "/all.safetensors")):
    assert {name: (each.shape, each.dtype) for name, each in loaded.items()} == {
        name: (each.shape, each.dtype) for name, each in whole.items()}
    assert torch.equal(loaded["values"], values) and loaded["half"].tolist() == [1, 1, 1]
assert taken() - held < 200 * MIB
read = {"values": torch.zeros(4 * MIB, dtype=torch.int64)}
dcp.load(read, checkpoint_id=folder + "/dcp")
assert torch.equal(read["values"], values)
assert load_file(folder + "/all.safetensors", device="cuda")["weight"].device.type == "cuda"
"""

OFFLOADED = """
model = torch.nn.Linear(16384, 4096, bias=False).cuda()
offloaded = torch.nn.Parameter(model.weight.detach().cpu())
optimizer = torch.optim.AdamW([offloaded])
for step in range(3):
    model(torch.zeros(2, 16384, device="cuda")).sum().backward()
    offloaded.grad = model.weight.grad.cpu()
    norm = torch.nn.utils.clip_grad_norm_([offloaded], 1.0)
    optimizer.step()
    model.weight.data.copy_(offloaded)
    model.weight.grad = None
state = optimizer.state[offloaded]
assert float(norm) == 0 and state["exp_avg"].shape == offloaded.shape and int(state["step"]) == 3
assert taken() - began < 200 * MIB, taken() - began
"""
SMALL = """
model = torch.nn.Linear(64, 64).cuda()
here = torch.nn.Parameter(torch.ones(8 * MIB))
optimizer = torch.optim.SGD([here, *model.parameters()], lr=0.5)
model(torch.zeros(2, 64, device="cuda")).sum().backward()
here.grad = torch.ones(8 * MIB)
optimizer.step()
assert here.tolist()[-1] == 0.5
"""

NUMBERS = """
whole = torch.zeros(4, dtype=torch.int64)
whole[:2] = 7
whole[2] = True
assert whole.tolist() == [7, 7, 1, 0]
assert torch.ones(3).to(torch.float16).tolist() == [1, 1, 1]
large = torch.full((4 * MIB,), 3.0)
assert large.clone().to(torch.float64)[-1] == 3
model = torch.nn.Linear(16384, 4).cuda()
"""


def test_a_model_is_built_on_the_host_without_memory(run: Run, program: Program) -> None:
    found = run(f"python {program(BEGIN + BUILT + END)}")

    said = [each.text for each in found.assumptions if each.about is About.HOST]
    assert "initial random numbers of host tensors from 8 MiB on are left out: those read as zeros" in said


def test_checkpoints_have_holes_and_every_value_of_the_host(run: Run, program: Program) -> None:
    assert run(f"python {program(BEGIN + SAVED + END)}").seen == {"eval": 0, "save": 1, "load": 1}


def test_what_a_program_writes_on_the_host_is_there(run: Run, program: Program) -> None:
    found = run(f"python {program(BEGIN + NUMBERS + END)}")

    assert not [each for each in found.assumptions if "random numbers" in each.text]


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_what_a_compiler_traces_is_no_tensor_of_the_host(is_symbolic: bool) -> None:
    real = torch.empty(4 << 20)
    traced = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(real, static_shapes=not is_symbolic)

    assert not storages._is_tensor_unwritten(traced)
    assert not storages._is_left_out(traced)
    assert storages._is_left_out(real)


def test_an_optimizer_on_the_host_of_what_came_from_the_gpu_computes_nothing(run: Run, program: Program) -> None:
    assert run(f"python {program(BEGIN + OFFLOADED)}").iterations == 3


def test_what_the_program_has_written_on_the_host_is_computed_with(run: Run, program: Program) -> None:
    assert run(f"python {program(BEGIN + SMALL)}").iterations == 1

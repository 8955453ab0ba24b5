"""What of the device comes to the host: always the same bytes, in the list of answers, and refused under `--strict`."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.errors import TraceError
from planner.tracing.program.assumptions import About, Assumption
from planner.tracing.program.rank_orders import RankRun

TRAINING = """
import sys, torch, torch.distributed.checkpoint as checkpoint
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for _ in range(3):
        {before}
        with {around}:
            loss = model(torch.ones(2, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
    {after}
"""
PLAIN = TRAINING.format(before="pass", around="torch.enable_grad()", after="pass")


def assumed(run: RankRun, *about: About) -> list[Assumption]:
    return [each for each in run.assumptions if each.about in about]


@pytest.mark.parametrize("elements", [3, 1 << 16, 5 << 20])
def test_floats_read_as_zeros_whatever_lay_there(run: Run, program: Program, elements: int) -> None:
    path = program(f"""{PLAIN}
from pathlib import Path
for _ in range(3):
    torch.full(({elements},), 7.0)  # and given back at once
    read = torch.rand({elements}, device="cuda").cpu()
    there = torch.full(({elements} + 5,), 7.0)
    there[2:-3].copy_(torch.rand({elements}, device="cuda"))
    strided = torch.full(({elements}, 2), 7.0)
    strided[:, 1].copy_(torch.rand({elements}, device="cuda"))
    assert not read.any(), read
    assert not there[2:-3].any() and (there[:2] == 7).all() and (there[-3:] == 7).all()
    assert not strided[:, 1].any() and (strided[:, 0] == 7).all()
train()
""")

    found = run(f"python {path}")

    said = [(each.text, each.place.rpartition("/")[2], each.count) for each in assumed(found, About.VALUE)]
    text = "values of float32 that are copied to the host read as 0"
    assert said == [(text, f"program.py:{line}", 3) for line in (17, 19, 21)]


def test_they_do_where_memory_is_that_of_a_file(run: Run, program: Program) -> None:
    path = program(f"""{PLAIN}
import pathlib, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "numbers")
    path.write_bytes(b"\\x01" * (8 << 20))
    mapped = torch.from_file(str(path), shared=False, size=2 << 20)
    mapped.copy_(torch.ones(2 << 20, device="cuda"))
    assert not mapped.any()
train()
""")

    assert run(f"python {path}").iterations == 3


def test_a_file_larger_than_the_memory_of_this_machine_is_mapped(run: Run, program: Program) -> None:
    path = program(f"""{PLAIN}
import os, pathlib, tempfile
with tempfile.TemporaryDirectory() as folder:
    path, size = pathlib.Path(folder, "weights"), 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    path.write_bytes(b"\x01")
    os.truncate(path, size)
    storage = torch.UntypedStorage.from_file(str(path), False, size)
    storage[1] = 2
    assert storage.nbytes() == size and storage[:3].tolist() == [1, 2, 0]
train()
""")

    assert run(f"python {path}").iterations == 3


def test_gigabytes_of_them_take_no_memory(run: Run, program: Program) -> None:
    path = program(f"""{PLAIN}
import resource
kept = [torch.empty(1 << 28, device="cuda").cpu() for _ in range(8)]
assert not kept[3][::4096].any()
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20, "KiB"
train()
""")

    assert run(f"python {path}").iterations == 3


READS = {
    "loss.detach().cpu().tolist()": "values of float32",
    "torch.softmax(loss, 0).to('cpu')": "values of float32",
    "torch.view_as_complex(loss.view(-1, 2)).cpu()": "values of complex64",
}


@pytest.mark.parametrize(("read", "said"), READS.items())
def test_what_a_program_reads_is_refused_under_strict(run: Run, program: Program, read: str, said: str) -> None:
    path = program(f"{PLAIN}\nloss = torch.rand(8, device='cuda')\n{read}\ntrain()\n")

    assert any(said in each.text for each in assumed(run(f"python {path}"), About.VALUE))
    with pytest.raises(TraceError, match=r"reads the values of a tensor .* at program.py:15"):
        run(f"python {path}", strict=True)


MOVES = {
    "an offload of activations": TRAINING.format(
        before="pass", around="torch.autograd.graph.save_on_cpu()", after="pass"
    ),
    "a module": TRAINING.format(before="model.cpu(); model.cuda()", around="torch.enable_grad()", after="pass"),
    "a checkpoint": TRAINING.format(
        before="pass", around="torch.enable_grad()",
        after="checkpoint.save(model.state_dict(), checkpoint_id=f'{sys.argv[0]}.saved')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MOVES)
def test_what_a_library_moves_is_listed_as_that(run: Run, program: Program, what: str) -> None:
    strictly = run(f"python {program(MOVES[what] + 'train()')}", strict=True, steps=3)

    assert assumed(strictly, About.VALUE) == []
    assert any("moves to the host are zeros there" in each.text for each in assumed(strictly, About.HOST))


MASKED = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def resident_kib():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

tokens = torch.arange(1000, device="cuda")
mask = (tokens < 995) & (tokens <= tokens[:, None])
query = torch.randn(1, 4, 1000, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
for step in range(60):
    pair = query.repeat_interleave(2, 1)
    scaled_dot_product_attention(pair, pair, pair, attn_mask=mask).sum().backward()
    if step == 20:
        began = resident_kib()
grown = resident_kib() - began
assert grown < 8192, f"{grown} KiB more in 40 steps"
"""


def test_masks_that_come_and_go_leave_no_holes_in_the_heap(run: Run, program: Program) -> None:
    assert not run(f"python {program(MASKED + PLAIN + 'train()')}").failed


CLOSURE = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64, device="cuda")).sum()
    if torch.isnan(loss) or torch.isinf(loss):
        loss = loss.new_tensor(0.0, requires_grad=True)
    loss.backward()
    return loss
for _ in range(4):
    optimizer.step(step)
"""


OWN_OPTIMIZER = """
import torch
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=1e-3)
        return loss
"""


@pytest.mark.parametrize("text", [CLOSURE, OWN_OPTIMIZER + CLOSURE.replace("torch.optim.Adam", "Own")])
def test_an_optimizer_does_not_read_what_its_closure_reads(text: str, run: Run, program: Program) -> None:
    found = run(f"python {program(text)}")

    assert any("read as False" in each.text for each in found.assumptions)
    assert not any("step counter" in each.text for each in found.assumptions)

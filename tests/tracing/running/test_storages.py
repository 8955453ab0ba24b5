"""Storages of the device: made, copied, saved and loaded."""

from __future__ import annotations

from program_runs import Program, Run

LINES = """
import copy, io, os, tempfile, torch
path = os.path.join(tempfile.mkdtemp(), "c.pt")
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.zeros(2, 1024, device="cuda")).sum().backward()
optimizer.step()
taken = lambda: torch.cuda.memory_allocated()
cuda = torch.device("cuda", 0)

# an alias takes nothing
before = taken()
alias = torch.empty(0, device="cuda").set_(model.weight.data)
assert alias.data_ptr() == model.weight.data_ptr() and taken() == before
whole = torch.empty(0, device="cuda").set_(model.weight.data.untyped_storage())
assert whole.shape == (1024 * 1024,) and taken() == before

# a copy takes as much again
other = copy.deepcopy(model)
assert other.weight.device == cuda and taken() == before + 4 * 1024 * 1024 + 4096
state = copy.deepcopy(optimizer.state_dict())
assert state["state"][0]["exp_avg"].device == cuda
assert torch.UntypedStorage(64, device="cuda").device == cuda
assert model.weight.untyped_storage().clone().device == cuda

# a checkpoint has its whole structure, and the host's values
torch.save({"model": model.state_dict(), "host": torch.arange(3), "rng": torch.cuda.get_rng_state()}, path)
assert os.stat(path).st_size > 4 * 1024 * 1024 > 50 * os.stat(path).st_blocks * 512
places = ((None, "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), (cuda, "cuda"), (lambda s, l: s.cuda(), "cuda"))
for where, device in places:
    loaded = torch.load(path, map_location=where)
    assert loaded["model"]["weight"].device.type == device and loaded["model"]["weight"].shape == (1024, 1024)
assert torch.load(path, map_location="cpu")["host"].tolist() == [0, 1, 2]
torch.cuda.set_rng_state(torch.load(path, map_location="cpu")["rng"])
buffer = io.BytesIO()
torch.save(model, buffer)
assert torch.load(io.BytesIO(buffer.getvalue()), weights_only=False).weight.device == cuda
"""


def test_they_are_what_they_are_on_a_gpu(run: Run, program: Program) -> None:
    found = run(f"python {program(LINES)}")

    assert "what lies on the device is saved as nothing" in " ".join(each.text for each in found.assumptions)

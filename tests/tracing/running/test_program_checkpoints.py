"""Unedited programs that save and resume by torch's own state-dict functions and torch.distributed.checkpoint."""

from __future__ import annotations

from program_runs import Program, Run

from planner.events import Alloc, Free, Mark, Phase
from planner.tracing.program.assumptions import About
from planner.tracing.program.rank_orders import RankRun

BEGIN = """
import tempfile, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_state_dict, get_model_state_dict,
    set_model_state_dict, set_optimizer_state_dict, set_state_dict)
from torch.distributed.fsdp import fully_shard
dist.init_process_group("{backend}")
rank, folder = dist.get_rank(), tempfile.mkdtemp()
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.zeros(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SAVES = """
for i in range(2):
    step()
full = StateDictOptions(full_state_dict=True, cpu_offload={offload})
state = get_state_dict(model, optimizer, options=full)
if rank == 0:
    torch.save(state, folder + "/full.pt")
del state
step()
parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
dcp.save(parts, checkpoint_id=folder + "/dcp")
dcp.async_save(parts, checkpoint_id=folder + "/async").result()
dcp.load(parts, checkpoint_id=folder + "/dcp")
set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
step()
"""
RESUMES = """
whole = {name: torch.zeros(each.shape) for name, each in model.state_dict().items()}
group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
states = {name: {"step": torch.tensor(1.0), "exp_avg": each, "exp_avg_sq": each} for name, each in whole.items()}
state = {"state": states, "param_groups": [{**group, "params": list(whole)}]}
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, dict(whole) if rank == 0 else {}, options=options)
set_optimizer_state_dict(model, optimizer, state if rank == 0 else {}, options=options)
for i in range(2):
    step()
"""
WHOLE = 2 * (512 * 512 + 512) * 4
"""Bytes of the parameters; an optimizer has twice as many."""


def program_of(program: Program, text: str, backend: str = "cpu:gloo,cuda:nccl") -> str:
    return f"torchrun --nproc-per-node 2 {program(BEGIN.replace('{backend}', backend) + text)}"


def test_a_gathered_state_dict_is_a_peak_of_the_save(run: Run, program: Program) -> None:
    found = run(program_of(program, SAVES.replace("{offload}", "False")), rank=1, steps=4)

    assert found.seen["save"] >= 1
    assert found.seen["load"] == 1
    assert taken_by(found.trace.written_out(), Phase.CHECKPOINT_SAVE, 2) == 3 * WHOLE


def test_one_that_goes_to_the_host_is_gathered_tensor_by_tensor(run: Run, program: Program) -> None:
    found = run(program_of(program, SAVES.replace("{offload}", "True")), steps=4)

    assert taken_by(found.trace.written_out(), Phase.CHECKPOINT_SAVE, 2) < WHOLE
    assert [each for each in phases(found) if each[1] == 3][-2:] == [
        (Phase.CHECKPOINT_SAVE, 3),
        (Phase.CHECKPOINT_LOAD, 3),
    ]


def test_what_rank_0_sends_is_announced_by_what_a_rank_has(run: Run, program: Program) -> None:
    first, second = (run(program_of(program, RESUMES), rank=rank) for rank in (0, 1))

    taken = [taken_by(each.trace.written_out(), Phase.CHECKPOINT_LOAD, 0) for each in (first, second)]
    assert taken[0] == taken[1] > 0
    said = [" ".join(each.text for each in found.assumptions if each.about is About.PEERS) for found in (first, second)]
    assert ["rank 0 announces the state dict" in each for each in said] == [False, True]


def test_a_world_without_a_backend_for_the_host_cannot_save_in_the_background(run: Run, program: Program) -> None:
    found = run(program_of(program, SAVES.replace("{offload}", "False"), backend="nccl"), steps=4)

    assert "A CPU backend must be enabled for async save" in found.ending


def phases(found: RankRun) -> list[tuple[Phase, int]]:
    return [(each.phase, each.iteration) for each in found.trace.written_out() if isinstance(each, Mark)]


def taken_by(events: object, phase: Phase, iteration: int) -> int:
    """The most that a phase takes beyond what it finds."""
    assert isinstance(events, tuple)
    sizes: dict[int, int] = {}
    inside, held, most = False, 0, 0
    for each in events:
        if isinstance(each, Mark):
            began, inside = inside, (each.phase, each.iteration) == (phase, iteration)
            held = held if began and inside else 0
        elif isinstance(each, Alloc):
            sizes[each.block] = each.requested_bytes
            held += each.requested_bytes
        elif isinstance(each, Free):
            held -= sizes[each.block]
        if inside:
            most = max(most, held)
    return most

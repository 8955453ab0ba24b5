"""Unedited programs as one rank of several, whose peers are absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import STEP, Program, Run

from planner.errors import ProgramError
from planner.events import Alloc, Category, Role

COMMAND = "torchrun --nnodes 2 --nproc-per-node 2 {programs}/in_a_world.py"


def test_replicas_have_buckets_and_a_communicator(run: Run) -> None:
    found = run(f"{COMMAND} ddp", rank=3)

    assert found.iterations == 3
    assert found.communicators == (4,)
    assert any(isinstance(each, Role) and each.category is Category.BUCKET for each in found.trace.events)


def test_replicas_do_the_same_on_every_rank(run: Run) -> None:
    first, last = (run(f"{COMMAND} ddp", rank=rank) for rank in (0, 3))

    assert sizes(first.trace.events) == sizes(last.trace.events)


def sizes(events: object) -> list[int]:
    assert isinstance(events, tuple)
    return [each.requested_bytes for each in events if isinstance(each, Alloc)]


def test_groups_of_any_backend_meshes_and_objects(run: Run, program: Program) -> None:
    path = program(f"""
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("cpu:gloo,cuda:nccl")
assert (dist.get_rank(), dist.get_world_size(), dist.is_nccl_available()) == (5, 8, True)
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("a", "b"))
assert list(mesh.get_coordinate()) == [1, 1]
gloo, nccl = dist.new_group([4, 5], backend="gloo"), dist.new_group([1, 5], backend="nccl")
assert (dist.get_backend(gloo), dist.get_backend(nccl)) == ("gloo", "nccl")
found = [None] * 8
dist.all_gather_object(found, {{"rank": dist.get_rank()}})
assert found == [{{"rank": 5}}] * 8
box = ["mine"]
dist.broadcast_object_list(box, src=0)
assert box == ["mine"]
dist.all_reduce(torch.ones(2, device="cuda"), group=nccl)
dist.all_reduce(torch.ones(2), group=gloo)
dist.barrier()
{STEP}
""")

    found = run(f"torchrun --nproc-per-node 8 {path}", rank=5)

    assert found.communicators == (2,)
    assert "what rank 0 would have sent is not known" in " ".join(each.text for each in found.assumptions)


def test_what_else_a_group_is_asked_for(run: Run, program: Program, tmp_path: Path) -> None:
    path = program(f"""
import torch, torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
gloo = dist.new_group(backend="gloo")
dist.monitored_barrier(gloo)
assert dist.split_group(split_ranks=[[0, 1], [2, 3]]).size() == 2
assert dist.split_group(split_ranks=[[2, 3]]) is None
assert dist.group.WORLD._get_backend(torch.device("cuda")).name() == "nccl"
with dist._coalescing_manager(device=torch.device("cuda")):
    dist.all_reduce(torch.ones(4, device="cuda"))
    dist.all_reduce(torch.ones(8, device="cuda"))
assert dist.recv(torch.ones(4, device="cuda")) == 1
box = ["mine"]
assert dist.recv_object_list(box, src=3) == 3 and box == ["mine"]
layer = fully_shard(torch.nn.Linear(8, 8).cuda())
checkpoint.save(layer.state_dict(), checkpoint_id="{tmp_path}/saved")
{STEP}
""")

    found = run(f"torchrun --nproc-per-node 4 {path}")

    assert "recv_object_list: what rank 3 would have sent is not known" in " ".join(
        each.text for each in found.assumptions
    )
    assert (tmp_path / "saved" / ".metadata").exists()


def test_a_rank_uses_its_own_gpu(run: Run, program: Program) -> None:
    path = program(f"""
import os, torch
from torch.distributed.device_mesh import init_device_mesh
local = int(os.environ["LOCAL_RANK"])
assert not torch.cuda.is_initialized()
init_device_mesh("cuda", (4,))  # chooses the rank's device where CUDA was not used before
assert torch.cuda.device_count() == 4
torch.cuda.manual_seed(3)
assert torch.zeros(2, device="cuda").device == torch.device("cuda", local) == torch.zeros(2).to(local).device
assert torch.cuda.current_device() == local
assert torch.cuda.is_initialized() and torch.cuda.initial_seed() == 3
before = torch.cuda.memory_stats()["allocation.all.allocated"]
kept = torch.zeros(2, device="cuda")
kept.to(f"cuda:{{local}}")
assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1
{STEP}
""")

    assert run(f"torchrun --nproc-per-node 4 {path}", rank=2).iterations == 1


def test_who_waits_for_a_peer_is_told(run: Run, program: Program) -> None:
    path = program("""
import torch.distributed as dist
dist.init_process_group("gloo")
dist.distributed_c10d._get_default_store().get("set by rank 1")
""")

    with pytest.raises(
        ProgramError, match="rank 0 of the program waits for something that another rank would have set"
    ):
        run(f"torchrun --nproc-per-node 2 {path}")


WRAPPED = "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --mixed_precision bf16"


@pytest.mark.parametrize(
    ("options", "buckets", "gathered"),
    [
        ("--mixed_precision bf16", True, False),
        (f"--use_fsdp --fsdp_version 2 {WRAPPED}", False, True),
        ("--use_deepspeed --zero_stage 3 --mixed_precision bf16", True, False),
    ],
    ids=["DDP", "FSDP2", "DeepSpeed stage 3"],
)
def test_accelerate_launch_decides_how_a_program_trains(run: Run, options: str, buckets: bool, gathered: bool) -> None:
    found = run(f"accelerate launch --num_processes 2 {options} {{programs}}/accelerated.py", rank=1)

    roles = [each for each in found.trace.events if isinstance(each, Role)]
    assert (found.iterations, found.communicators[0]) == (3, 2)
    assert any(each.category is Category.BUCKET for each in roles) == buckets
    assert any(each.name.endswith("(gathered)") for each in roles) == gathered


STAGES = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
group = mesh["pp"].get_group()
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    found = model(torch.zeros(2, 64, device="cuda"))
    dist.send(found.detach(), group=group, group_dst=1)
    gradient = torch.empty_like(found)
    dist.recv(gradient, group=group, group_src=1)
    found.backward(gradient)
    dist.all_reduce(model.weight.grad, group=mesh["dp"].get_group())
    optimizer.step()
"""


def test_single_messages_show_the_stages_of_a_pipeline(run: Run, program: Program) -> None:
    assert run(f"torchrun --nproc-per-node 4 {program(STAGES)}").talkers == ((0, 2),)


def test_numbers_that_a_rank_broadcasts_are_heard_by_those_that_run_after_it(run: Run, program: Program) -> None:
    path = program(f"""
import torch, torch.distributed as dist
dist.init_process_group("nccl")
flags = torch.tensor([1, 3] if dist.get_rank() == 0 else [0, 0], device="cuda")
dist.broadcast(flags, 0)
assert flags.tolist() == [1, 3]
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
place = dist.get_rank() // 2
length = torch.full((1,), 7 * (dist.get_rank() % 2 == 0), device="cuda")
dist.broadcast(length, 2 * place, group=pairs[place])  # of a pair whose source is not run
assert length.tolist() == [7], length
{STEP}
""")
    command = f"torchrun --nproc-per-node 4 {path}"

    first = run(command)

    assert first.told == {"broadcast [[0, 1, 2, 3], 0, 0]": "[1, 3]", "broadcast [[0, 1], 0, 0]": "[7]"}
    assert run(command, rank=3, heard=first.told).iterations == 1
    with pytest.raises(ProgramError, match="AssertionError"):
        run(command, rank=3)


def test_a_script_of_the_old_launcher_gets_its_local_rank(run: Run, program: Program) -> None:
    path = program(
        "import argparse, torch, torch.distributed as dist\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', '--local-rank', type=int, default=-1)\n"
        "local_rank = parser.parse_args().local_rank\n"
        "layer = torch.nn.Linear(256, 256).to(f'cuda:{max(local_rank, 0)}')\n"
        "if local_rank >= 0:\n"
        "    dist.init_process_group('nccl')\n"
        "    layer = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[local_rank])\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "for _ in range(3):\n"
        "    layer(torch.ones(2, 256, device=f'cuda:{max(local_rank, 0)}')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    launch = "python -m torch.distributed.launch --nproc_per_node 2"

    given, not_given = run(f"{launch} {path}", rank=1), run(f"{launch} --use_env {path}", rank=1)

    assert (given.devices, len(given.communicators)) == ((1,), 1)
    assert (not_given.devices, len(not_given.communicators)) == ((0,), 0)

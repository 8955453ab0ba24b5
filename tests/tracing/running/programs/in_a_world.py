"""A Llama over several ranks in a loop of its own: `ddp` replicates it, `fsdp` shards it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("ddp", "fsdp"))
parser.add_argument("--recompute", default="", help="layers that recompute, wrapped by torch (0,1)")
options = parser.parse_args()

dist.init_process_group("nccl")
rank, local_rank, world = dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size()
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
names = [None] * world
dist.all_gather_object(names, f"rank {rank}")
if rank == 0:
    print(f"{names[0]} and {world - 1} more")

config = LlamaConfig(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


def wrap_layers(model):
    for layer in filter(None, options.recompute.split(",")):
        model.model.layers[int(layer)] = checkpoint_wrapper(model.model.layers[int(layer)])
    return model


if options.kind == "ddp":
    bare = wrap_layers(LlamaForCausalLM(config)).to(device)
    model = DistributedDataParallel(bare, device_ids=[local_rank])
else:
    mesh = init_device_mesh("cuda", (world,))
    with torch.device("meta"):
        model = bare = wrap_layers(LlamaForCausalLM(config))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.02)
model.train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(1000):
    tokens = torch.randint(0, 2048, (4, 128)).to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.kind == "ddp"):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss)
    if rank == 0:
        print(loss.item() / world)
    dist.barrier()

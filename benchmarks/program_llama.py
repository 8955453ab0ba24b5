"""Llama-3-8B by transformers in a loop with FSDP2, for `planner run`; writes the processor seconds of each step.

Run: planner run --allow-writes --steps 8 -- torchrun --nproc-per-node 8 benchmarks/program_llama.py FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def main(path: Path) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    config = LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    began = time.process_time()
    model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    seconds = [time.process_time() - began]
    while True:
        began = time.process_time()
        tokens = torch.randint(0, config.vocab_size, (1, 8192), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
        path.write_text(json.dumps(seconds), encoding="utf-8")


main(Path(sys.argv[1]))

"""DeepSpeed's engine as its guide says, with the stage of its arguments."""

import argparse

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int)
parser.add_argument("--model")
parser.add_argument("--local_rank", type=int)
options = parser.parse_args()
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.model))
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}, "bf16": {"enabled": True},
        "zero_optimization": {"stage": options.stage, "reduce_bucket_size": 500_000},
    },
)  # fmt: skip
for _ in range(40):
    tokens = torch.randint(0, 400, (4, 64), device=engine.device)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    print(loss.item())

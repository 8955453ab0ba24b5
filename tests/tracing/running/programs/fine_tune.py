"""Fine-tunes a small Llama with transformers' Trainer, as a script of its users does."""

import argparse
import os
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--fsdp", action="store_true")
options = parser.parse_args()

config = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 512, (64, 64))
data = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in tokens]
arguments = TrainingArguments(
    output_dir=os.path.join(tempfile.mkdtemp(), "out"),
    per_device_train_batch_size=4,
    max_steps=100,
    bf16=True,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    optim="adamw_torch",
    **(
        {"fsdp": "full_shard", "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
        if options.fsdp
        else {}
    ),
)
Trainer(model=model, args=arguments, train_dataset=data).train()

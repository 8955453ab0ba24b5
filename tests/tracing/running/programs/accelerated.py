"""A loop that leaves everything to accelerate: it trains as `accelerate launch` says."""

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

accelerator = Accelerator()
config = LlamaConfig(
    vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.randint(0, 512, (64, 64)), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
accelerator.print(accelerator.state)
for _ in range(9):
    for tokens in data:
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(accelerator.gather(loss).mean().item())

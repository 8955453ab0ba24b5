"""A loop as litgpt's: the head is called in chunks, their logits are cast to float32 and stay until the next ones."""

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

CHUNKS, BATCH, LENGTH, VOCABULARY = 4, 4, 64, 4096
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).train()
torch.set_default_dtype(torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def logits_of(tokens):
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    parts = [model.lm_head(part) for part in hidden.split(LENGTH // CHUNKS, dim=1)]
    return [part.float() for part in parts]


for _ in range(3):
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64).to("cuda")
    targets = torch.zeros(BATCH, LENGTH, dtype=torch.int64).to("cuda")
    logits = logits_of(tokens)
    losses = [
        functional.cross_entropy(part.reshape(-1, VOCABULARY), chosen.reshape(-1), reduction="none")
        for part, chosen in zip(logits, targets.split(LENGTH // CHUNKS, dim=1), strict=True)
    ]
    loss = torch.cat(losses).sum() / targets.numel()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

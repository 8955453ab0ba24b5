"""x-transformers' autoregressive wrapper, sampled from between steps."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=256, max_seq_len=128, attn_layers=Decoder(dim=128, depth=4, heads=4, rotary_pos_emb=True)
    )
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(20):
    for _ in range(4):
        loss = model(torch.randint(0, 256, (4, 129)).cuda())
        (loss / 4).backward()
    print(loss.item())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 1:
        print(model.generate(torch.randint(0, 256, (1, 16)).cuda(), 32).tolist()[0][:4])

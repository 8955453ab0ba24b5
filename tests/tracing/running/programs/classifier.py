"""A language model's loop as people write it: mixed precision, a scaler, clipping, evaluation, a checkpoint."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--eval-every", type=int, default=2)
parser.add_argument("--out", default="")
options = parser.parse_args()

VOCABULARY, LENGTH, WIDTH = 512, 64, 128
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)
data = torch.randint(0, VOCABULARY, (20_000,))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, 4, width // 4).transpose(1, 2)
            for each in self.attend(self.norm(x)).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.other_norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).view(-1, VOCABULARY), targets.view(-1))


def batch():
    starts = torch.randint(len(data) - LENGTH - 1, (options.batch,))
    x = torch.stack([data[i : i + LENGTH] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + LENGTH] for i in starts])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


@torch.no_grad()
def evaluate():
    model.eval()
    losses = torch.zeros(3)
    for k in range(3):
        losses[k] = model(*batch()).item()
    model.train()
    return losses.mean()


model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
best = 1e9
for step in range(options.steps):
    began = time.time()
    if step % options.eval_every == 0 and step:
        loss = evaluate()
        if loss < best:
            best = loss
            if options.out:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, options.out
                )
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(*batch()) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        raise SystemExit("the gradient's norm is not finite")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step}: loss {loss.item() * 2:.4f}, norm {norm:.2f}, {torch.cuda.max_memory_allocated() >> 20} MiB")

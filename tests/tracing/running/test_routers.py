"""Routers of experts that count their tokens: counts of so many choices sum to them, on one rank and across ranks."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

ROUTER = """
import torch
import torch.distributed as dist
EXPERTS, K, TOKENS, RANKS = 16, 2, 512, {ranks}
if RANKS > 1:
    dist.init_process_group("nccl")
router, expert = torch.nn.Linear(32, EXPERTS).cuda(), torch.nn.Linear(32, 32).cuda()
optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
for _ in range(3):
    x = torch.randn(TOKENS, 32, device="cuda")
    scores, chosen = router(x).softmax(-1).topk(K)
    counts = {counts}
    sorted_x = x[chosen.flatten().argsort() // K]
    if RANKS > 1:
        sent = counts.view(RANKS, -1).sum(1)
        everywhere = torch.empty(RANKS * EXPERTS, dtype=counts.dtype, device="cuda")
        dist.all_gather_into_tensor(everywhere, counts)
        own = everywhere.view(RANKS, RANKS, -1)[:, dist.get_rank()]
        received = own.sum(1).to("cpu", non_blocking=True).tolist()
        there = torch.empty(sum(received), 32, device="cuda")
        dist.all_to_all_single(there, sorted_x, received, sent.tolist())
        sorted_x, counts = there, own.sum(0)
    sizes = counts.tolist()
    assert sum(sizes) == len(sorted_x) and min(sizes) > 0, sizes
    y = torch.cat([expert(part) for part in sorted_x.split(sizes)])
    (y.sum() + scores.sum()).backward()
    optimizer.step()
"""
COUNTS = {
    "a map of tokens and experts": "torch.zeros_like(router(x)).int().scatter(1, chosen, 1).bool().sum(0)",
    "one-hot": "torch.nn.functional.one_hot(chosen, EXPERTS).sum((0, 1))",
    "bincount": "torch.bincount(chosen.flatten(), minlength=EXPERTS)",
    "histc": "torch.histc(chosen.flatten(), bins=EXPERTS, min=0, max=EXPERTS)",
    "bincount of what is not known": "torch.bincount((scores * 1e4).long().flatten(), minlength=EXPERTS)",
    "histc of what is not known": "torch.histc((scores * 1e4).long().flatten(), bins=EXPERTS, min=0, max=EXPERTS)",
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("counts", COUNTS)
def test_counts_sum_to_the_choices(run: Run, program: Program, counts: str, ranks: int) -> None:
    path = program(ROUTER.format(counts=COUNTS[counts], ranks=ranks))

    assert run(f"torchrun --nproc-per-node {ranks} {path}" if ranks > 1 else f"python {path}").iterations == 3

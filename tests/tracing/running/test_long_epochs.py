"""What the allocator caches over an epoch of batches of many sizes is as if the program had gone through all of it."""

from __future__ import annotations

import pytest
from program_runs import Program, judge

from planner.report.statement import Plan, RankClassStatement

EPOCH = 10_000
"""Steps: more than an epoch of any of them has."""

PROGRAM = """
import math, random, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
chance = random.Random(7)
def draw():
    return {length}
texts = [torch.zeros(max(16, min(int(draw()), 4096)), dtype=torch.long) for _ in range({texts})]
def pad(examples):
    batch = nn.utils.rnn.pad_sequence(examples, batch_first=True)
    return F.pad(batch, (0, -batch.shape[1] % {multiple}))
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in self.mix(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2)).relu()
model = nn.Sequential(nn.Embedding(512, 64), Block(), Block(), nn.Linear(64, 512)).cuda()
optimizer, kept = torch.optim.AdamW(model.parameters()), []
for number, ids in enumerate(DataLoader(texts, batch_size=4, collate_fn=pad), 1):
    ids = ids.cuda()
    F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    if number % {accumulated} == 0:
        optimizer.step()
        optimizer.zero_grad()
    {besides}
"""
LOGS = """kept = [*(kept if number % 10 else []), ids.float().mean()]
    print(sum(kept).item() if number % 10 == 9 else number)"""
LOGNORMAL = "chance.lognormvariate(math.log(300), {})"


def lines(
    length: str = LOGNORMAL.format(0.8), texts: int = 1000, multiple: int = 1, accumulated: int = 1, besides: str = ""
) -> str:
    return PROGRAM.format(length=length, texts=texts, multiple=multiple, accumulated=accumulated, besides=besides)


def rank_of(statement: Plan) -> RankClassStatement:
    (rank,) = statement.rank_classes
    return rank


@pytest.mark.parametrize(
    "named",
    [
        lines(),
        lines(LOGNORMAL.format(0.4)),
        lines(LOGNORMAL.format(1.2)),
        lines("chance.uniform(16, 2048)"),
        lines("chance.gauss(2000, 200) if chance.random() < 0.2 else chance.gauss(200, 30)"),
        lines(multiple=64),
        lines(accumulated=4),
        lines(besides=LOGS),
    ],
    ids=["lognormal", "narrow", "wide", "uniform", "bimodal", "padded", "accumulated", "logged"],
)
def test_the_cache_is_as_large_as_after_the_whole_epoch_in_its_order(program: Program, named: str) -> None:
    script = program(named)

    planned = rank_of(judge("python", script))
    whole = rank_of(judge("python", script, steps=EPOCH))

    with_the_largest_early = max(phase.peak_reserved_bytes for phase in planned.phases)
    assert planned.peak.reserved_bytes == pytest.approx(
        max(whole.peak.reserved_bytes, with_the_largest_early), rel=0.001
    )


def test_what_more_is_cached_over_the_epoch_is_a_moment_of_its_own(program: Program) -> None:
    planned = rank_of(judge("python", program(lines())))

    moment = planned.moments[-1]
    assert moment.name == "after many lengths"
    assert (
        moment.reserved_bytes
        == planned.peak.reserved_bytes
        > max(phase.peak_reserved_bytes for phase in planned.phases)
    )
    assert moment.sentence.startswith("After 250 steps, with batches in their order, ")


BY_CHANCE = "rows = torch.zeros(4 * random.Random(number).randint(1, 2000), 64).cuda(); model[1:](rows[None]).sum()"


def test_where_memory_does_not_follow_from_batches_the_interval_allows_for_more(program: Program) -> None:
    statement = judge("python", program(lines(besides=BY_CHANCE, texts=400)))

    planned = rank_of(statement)
    outside = planned.outside_allocator.total_bytes
    assert planned.peak.interval_bytes[1] >= 2.5 * planned.peak.reserved_bytes + outside
    assert [said for said in statement.unseen if "was not replayed" in said] == [
        "what the allocator caches over 100 batches of other sizes was not replayed (sizes of blocks do not follow from"
        " those of batches): the interval allows for 150% more to be reserved"
    ]


def test_a_program_that_is_run_to_its_end_is_judged_as_it_was(program: Program) -> None:
    statement = judge("python", program(lines(texts=80)), batches=20, steps=EPOCH)

    assert "after many lengths" not in [moment.name for moment in rank_of(statement).moments]

"""Values that a program brings from the host are computed by whatever it does with them; what is unknown reads as in a
healthy step."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.events import Alloc
from planner.tracing.program.assumptions import About

STEP = """
model = torch.nn.Linear(32, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 32, device="cuda")).sum().backward()
    optimizer.step()
"""
GRID = """
import torch
grid = torch.tensor([[1, 512, 512], [1, 256, 1024]])
lengths, floats = torch.tensor([5, 1, 7, 3, 7]), torch.tensor([0.4, 2.6, 1.5, -3.2])
SIZES = {
    "prod // 4": lambda grid, lengths, floats: (grid.prod(-1) // 4).sum(),
    ">>": lambda grid, lengths, floats: (grid >> 2).sum(),
    "**": lambda grid, lengths, floats: (lengths ** 2).sum(),
    "cumsum": lambda grid, lengths, floats: lengths.cumsum(0)[-1],
    "cummax": lambda grid, lengths, floats: lengths.cummax(0).values[-2],
    "repeat_interleave": lambda grid, lengths, floats: lengths.repeat_interleave(lengths).sum(),
    "ceil": lambda grid, lengths, floats: floats.ceil().abs().sum().long(),
    "floor": lambda grid, lengths, floats: floats.floor().abs().sum().long(),
    "round": lambda grid, lengths, floats: floats.round().abs().sum().long(),
    "sort": lambda grid, lengths, floats: lengths.sort(descending=True).values[:2].sum(),
    "argsort": lambda grid, lengths, floats: lengths.argsort(stable=True)[-1],
    "topk": lambda grid, lengths, floats: lengths.topk(3).values.sum(),
    "median": lambda grid, lengths, floats: lengths.median(),
    "linspace": lambda grid, lengths, floats: torch.linspace(0, 9, 4, device=grid.device).sum().long(),
    "triu": lambda grid, lengths, floats: lengths.expand(5, 5).triu().sum(),
    "index_add": lambda grid, lengths, floats: torch.zeros_like(lengths).index_add(0, lengths % 5, lengths).max(),
    "scatter_add": lambda grid, lengths, floats: torch.zeros_like(lengths).scatter_add(0, lengths % 5, lengths).max(),
    "histc": lambda grid, lengths, floats: torch.histc(lengths.float(), 4, 0, 8).max().long(),
    "unique": lambda grid, lengths, floats: lengths.unique(return_counts=True)[1].max(),
    "bucketize": lambda grid, lengths, floats: torch.bucketize(lengths, lengths.sort().values).sum(),
    "searchsorted": lambda grid, lengths, floats: torch.searchsorted(lengths.sort().values, lengths).sum(),
    "masked assignment": lambda grid, lengths, floats: assign(lengths.clone()).sum(),
    "a part of a larger buffer": lambda grid, lengths, floats: part(lengths).sum(),
}

def assign(lengths):
    lengths[lengths > 4] = 2
    return lengths

def part(lengths):
    buffer = torch.empty(100, dtype=lengths.dtype, device=lengths.device)
    buffer[40:45] = lengths
    return buffer[40:45] + buffer[41]

for name, size in SIZES.items():
    expected, there = size(grid, lengths, floats), size(grid.cuda(), lengths.cuda(), floats.cuda())
    assert there.is_cuda and there.item() == expected.item() > 0, (name, there, expected)
    torch.zeros(expected, dtype=torch.uint8, device="cuda")
"""


def test_known_values_go_through_every_operator(run: Run, program: Program) -> None:
    found = run(f"python {program(GRID + STEP)}", strict=True)

    assert [each for each in found.assumptions if each.about is About.VALUE] == []
    grid_tokens = 131_072
    assert grid_tokens in [event.requested_bytes for event in found.trace.events if isinstance(event, Alloc)]


HEALTHY = """
import torch
unknown = torch.randn(4, 4, device="cuda") * 2
SEEN = {
    "isfinite": (unknown.isfinite().all(), True),
    "not finite": (unknown.isfinite().logical_not().any(), False),
    "not all finite": (unknown.isfinite().all().logical_not(), False),
    "isnan": (unknown.isnan().any(), False),
    "no NaN": ((~unknown.isnan()).all(), True),
    "isinf": (unknown.isinf().any(), False),
    "infinite or no number": (unknown.isinf().logical_or(unknown.isnan()).float().max(), 0.0),
    "a sum of flags": (unknown.isnan().sum(), 0),
    "itself": ((unknown != unknown).any(), False),
}
for name, (value, healthy) in SEEN.items():
    assert value.item() == healthy, name
scaler = torch.amp.GradScaler()
model = torch.nn.Linear(32, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    scaler.scale(model(torch.randn(4, 32, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
assert scaler.get_scale() == 65536.0
"""


def test_what_is_filled_with_one_value_leaves_room_for_others(run: Run, program: Program) -> None:
    """Of packed weights that begin as zeros there are gigabytes."""
    filled = """
import torch
zeros = [torch.zeros(16 << 20, dtype=torch.uint8, device="cuda") for _ in range(100)]
assert torch.tensor([5, 7]).cuda().sum().item() == 12
zeros[3][5] = 2
assert zeros[3].sum().item() == 2 and zeros[4].sum().item() == 0
"""
    assert run(f"python {program(filled + STEP)}").iterations == 2


def test_predicates_of_unknown_values_say_what_a_healthy_step_has(run: Run, program: Program) -> None:
    assert run(f"python {program(HEALTHY)}").iterations == 3


MASKED = """
import torch
tokens = torch.randn(4, 6, 100, device="cuda").argmax(-1)
ends = torch.isin(tokens, torch.tensor([2, 3], device="cuda"))
first, is_over = ends.int().argmax(1), ends.any(1)
assigned = torch.full((4,), 6, device="cuda")
assigned[is_over] = first[is_over]
CHOSEN = {
    "assigned where it is over": assigned,
    "where": torch.where(is_over, first, 6),
    "where not": torch.where(~is_over, 6, first),
    "filled": torch.full((4,), 6, device="cuda").masked_fill(is_over, 1),
    "filled where not": first.masked_fill(~is_over, 6),
    "assigned where it is not over": first.clone(),
}
CHOSEN["assigned where it is not over"][~is_over] = 6
for name, length in CHOSEN.items():
    mask = torch.arange(6, device="cuda") < length[:, None]
    assert mask.int().sum().item() == 24 and mask.cpu().all(), name
    rows = [row[of_row] for row, of_row in zip(tokens.cpu(), mask.cpu())]
    assert [len(row) for row in rows] == [6, 6, 6, 6], name
sequences = torch.cat([torch.full((4, 2), 7, device="cuda"), tokens], 1)
assert not {0, 1, 2, 3} & {*sequences.flatten().tolist()} and not {0, 1, 2, 3} & {*sequences[1, 2:].tolist()}
"""


def test_what_a_mask_of_a_healthy_step_chooses_is_followed(run: Run, program: Program) -> None:
    assert run(f"python {program(MASKED + STEP)}").iterations == 2


PLACES = """
import torch
chosen = torch.randn(32, 10, device="cuda").argmax(1)
assert len(chosen.unique()) == len((chosen + 3).view(4, 8).unique()) == 10
assert len(torch.rand(32, 10, device="cuda").multinomial(1).unique()) == 10
assert chosen.min().item() == 0 and chosen.max().item() == 9 and chosen.amax().item() == 9
assert torch.nn.functional.one_hot(chosen).shape == (32, 10)
tokens = [len(torch.where(chosen == expert)[0]) for expert in range(10)]
assert tokens == [4] * 10, tokens
"""


def test_places_among_ten_are_no_more_than_ten(run: Run, program: Program) -> None:
    assert run(f"python {program(PLACES + STEP)}").iterations == 2


SIGHT = """
import torch
from transformers import {name}Config, {name}ForConditionalGeneration
config = {name}Config(
    text_config=dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=1000, bos_token_id=0, eos_token_id=1,
        rope_parameters={{"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}},
    ),
    vision_config=dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=64, {vision}),
    image_token_id=990, video_token_id=991, vision_start_token_id=992, vision_end_token_id=993,
)
model = {name}ForConditionalGeneration(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
grid = torch.tensor([[1, 16, 16], [1, 8, 24]])
images = [7, 7]
for tokens in (grid.prod(-1) // 4).tolist():
    images += [992, *[990] * tokens, 993, 7, 7]
ids = torch.tensor([images])
batch = dict(
    input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), image_grid_thw=grid,
    mm_token_type_ids=(ids == 990).int(), pixel_values=torch.randn(int(grid.prod(-1).sum()), 3 * 2 * {patch} * {patch}),
)
for _ in range(2):
    model(**{{name: part.cuda() for name, part in batch.items()}}).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SEEING = {
    "Qwen2_5_VL": ("fullatt_block_indexes=[1], window_size=112", 14),
    "Qwen3VL": ("deepstack_visual_indexes=[0], num_position_embeddings=256", 16),
}


@pytest.mark.parametrize("name", SEEING)
def test_models_that_size_images_by_their_grid_are_trained(run: Run, program: Program, name: str) -> None:
    vision, patch = SEEING[name]

    found = run(f"python {program(SIGHT.format(name=name, vision=vision, patch=patch))}", strict=True)

    assert found.iterations == 2


FLOAT16 = """
import deepspeed, torch
layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(4)]
model = torch.nn.Sequential(*layers)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={{
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {stage}}}, "fp16": {{"enabled": True}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4, "torch_adam": True}}}},
}})
for _ in range(3):
    engine.backward(engine(torch.randn(2, 64, device="cuda").half()).sum())
    engine.step()
assert engine.global_steps == 3 and engine.skipped_steps == 0, (engine.global_steps, engine.skipped_steps)
"""


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_no_step_of_deepspeed_in_float16_is_skipped(run: Run, program: Program, stage: int) -> None:
    assert run(f"torchrun --nproc-per-node 2 {program(FLOAT16.format(stage=stage))}").iterations == 3

"""A program that keeps something with every step is found out, and one that does not is not suspected."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from program_runs import Program, Run, judge

from planner.allocator.long_runs.growth import growth_of
from planner.allocator.rules import Rules
from planner.report.statement import Verdict
from planner.report.verdict_text import verdict_sentences
from planner.tracing.program.run_length import steps_to_run

LOOP = """
import torch
from torch.nn.functional import cross_entropy
model = torch.nn.Linear(256, 1000).cuda()
optimizer = torch.optim.AdamW(model.parameters())
outputs, losses, best = [], [], None
for step in range(9):
    inputs, labels = torch.randn(64, 256).cuda(), torch.randint(0, 1000, (64,)).cuda()
    output = model(inputs)
    loss = cross_entropy(output, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {kept}
"""
OUTPUT_BYTES = 64 * 1000 * 4


@pytest.mark.parametrize(
    ("kept", "bytes_per_step", "maker"),
    [
        ("outputs.append(output)", OUTPUT_BYTES, "aten.addmm"),
        ("losses.append(loss)", 512, "aten.nll_loss_forward"),
        ("losses.append(loss.item())", 0, ""),
        ("outputs = [*outputs[-1:], output]", 0, ""),
        ("best = output.detach()", 0, ""),
    ],
)
def test_what_a_program_keeps(run: Run, program: Program, kept: str, bytes_per_step: int, maker: str) -> None:
    found = run(f"python {program(LOOP.format(kept=kept))}", steps=9)

    growth = growth_of(found.trace.written_out(), Rules())

    assert ((growth.bytes_per_step, growth.origin.op) if growth else (0, "")) == (bytes_per_step, maker)


LEAK = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(8192, 1024).cuda())  # higher than any step
kept = []
for step in {numbers}:
    model(torch.ones(8, 1024).cuda()).sum().backward()
    optimizer.step()
    kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))
"""


@pytest.mark.parametrize(
    ("numbers", "verdict", "said"),
    [
        ("range(50_000)", Verdict.EXCEEDS, "Does not fit: each step keeps 2.00 MiB on rank 0, and the memory is full"
         " in step {step} of 50,000."),
        ("range(5000)", Verdict.FITS, "Fits: each step keeps 2.00 MiB on rank 0, and the 5,000 steps of the run end"
         " before the memory is full in step {step}."),
        ("__import__('itertools').count()", Verdict.FITS, "Fits until step {step}: each step keeps 2.00 MiB on"
         " rank 0, and the memory is full in that step; how many steps are run is not known."),
        ("range(9)", Verdict.FITS, "Fits: each step keeps 2.00 MiB on rank 0, and the 9 steps of the run end"
         " before the memory is full in step {step}."),
    ],
)  # fmt: skip
def test_the_verdict_on_a_leak_is_that_of_as_many_steps_as_the_program_runs(
    program: Program, numbers: str, verdict: Verdict, said: str
) -> None:
    found = judge("python", program(LEAK.format(numbers=numbers)), gpu="A100-SXM-40GB")

    (statement,) = found.rank_classes
    assert statement.growth is not None
    assert statement.growth.bytes_per_step == 2 << 20
    assert 15_000 < statement.growth.full_in_step < 20_000
    assert (found.verdict, verdict_sentences(found)[0]) == (
        verdict,
        said.format(step=f"{statement.growth.full_in_step:,}"),
    )
    assert "steady" not in found.ending


def loop(numbers: str, body: str = "optimizer.step()", before: str = "") -> str:
    return f"{before}\nfor step in {numbers}:\n    loss.backward()\n    {body}\n"


@pytest.mark.parametrize(
    ("lines", "options", "steps"),
    [
        (loop("range(5000)"), "", 5000),
        (loop("range(1, 5001)"), "", 5000),
        (loop("trange(5_000)"), "", 5000),
        (loop("tqdm(range(5000))"), "", 5000),
        (loop("range(STEPS)", before="STEPS = 10 ** 3"), "", 1000),
        (loop("range(STEPS)", before="STEPS = 10\nSTEPS = 20"), "", 0),
        (loop("range(args.rounds)"), "--rounds=70", 70),
        (loop("range(args.rounds + 1)", before="parser.add_argument('--rounds', type=int, default=30)"), "", 31),
        (loop("range(args.rounds)", before="parser.add_argument('--rounds', default=30)"), "--rounds 40", 40),
        (loop("range(config.rounds)", before="class Config:\n    rounds: int = 60"), "", 60),
        (loop("loader"), "--max_steps 500", 500),
        (loop("loader"), "--train-iters=700", 700),
        (loop("loader"), "trainer.max_steps=800", 800),
        (loop("loader"), "--max_steps -1", 0),
        (loop("loader"), "--warmup_steps 10 --eval_steps 5 --save-steps 7 --gradient_accumulation_steps 4", 0),
        (loop("loader"), "", 0),
        (loop("range(5000)"), "--max_steps 20", 20),
        (loop("range(5000)", "optimizer.step()\n    if step > 3: break"), "", 0),
        (loop("range(5000)", "if step % 4 == 0: optimizer.step()"), "", 0),
        ("for epoch in range(3):\n    " + loop("range(100)").strip().replace("\n", "\n    "), "", 300),
        ("for epoch in range(3):\n    " + loop("loader").strip().replace("\n", "\n    "), "", 0),
        ("while True:\n    " + loop("range(5)").strip().replace("\n", "\n    "), "", 0),
        ("SFTTrainer(model, args=SFTConfig(max_steps=60, warmup_steps=5)).train()", "", 60),
        ("Trainer(args=TrainingArguments(max_steps=args.max_steps, num_train_epochs=1)).train()", "--max_steps 44", 44),
        ("environment(max_steps=60)", "", 0),
        (loop("range(10)") + loop("range(5000)"), "", 0),
    ],
)
def test_how_many_steps_a_program_runs_is_read_of_its_loop_and_its_options(
    lines: str, options: str, steps: int
) -> None:
    assert steps_to_run({Path("train.py"): ast.parse(lines)}, options.split()) == steps

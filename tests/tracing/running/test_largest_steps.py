"""The loop of a program whose sizes depend on the step is counted on to where they are largest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Program, Run, judge

from planner.allocator.replay import replay
from planner.events import Phase
from planner.report.statement import Verdict
from planner.report.verdict_text import verdict_sentences
from planner.tracing.program.step_look_ahead import numbers_to_try

HEAD = """
import random, sys, torch
from types import SimpleNamespace
args = SimpleNamespace(max_steps=2000, schedule=(256, 1024, 4096, 512))
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(rows, times=1):
    for _ in range(times):
        model(torch.zeros(rows, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def get_bs(step):
    x = step / args.max_steps
    if x >= 1:
        return args.schedule[-1]
    return args.schedule[int(len(args.schedule) * x)]

"""
MANAGER = """
class Manager:
    def __init__(self):
        self.advance_schedule(0)

    def advance_schedule(self, step):
        new_batch_size = get_bs(step)
        if step == 0 or new_batch_size != self.batch_size:
            self.batch_size = new_batch_size

manager = Manager()
"""
PROGRAMS = {
    "a schedule": ("for step in range(args.max_steps + 1):\n    train(get_bs(step))\n", 1000),
    "a list by the step": (
        "windows = [256, 512, 4096, 1024]\nfor step in range(400):\n    window = windows[step // 100]\n"
        "    train(window)\n",
        200,
    ),
    "an object that is advanced": (
        MANAGER + "for step in range(args.max_steps):\n    manager.advance_schedule(step)\n"
        "    train(manager.batch_size)\n",
        1000,
    ),
    "a linear warm-up": (
        "for step in range(args.max_steps):\n    seq_len = min(64 + 64 * step // 10, 4096)\n    train(seq_len)\n",
        630,
    ),
    "a condition": (
        "batch_size = 256\nfor step in range(args.max_steps):\n    if step >= 900:\n        batch_size = 4096\n"
        "    train(batch_size)\n",
        900,
    ),
    "while": (
        "step = 0\nwhile step < args.max_steps:\n    batch_size = get_bs(step)\n    train(batch_size)\n    step += 1\n",
        1000,
    ),
    "while, counted first": (
        "step = -1\nwhile step < args.max_steps:\n    step += 1\n    batch_size = get_bs(step)\n"
        "    train(batch_size)\n",
        1000,
    ),
    "until a break": (
        "iter_num = 0\nwhile True:\n    batch_size = get_bs(iter_num)\n    train(batch_size)\n    iter_num += 1\n"
        "    if iter_num > args.max_steps:\n        break\n",
        1000,
    ),
    "enumerate": (
        "def fit(data):\n    for step, _ in enumerate(data):\n        if step >= args.max_steps:\n            return\n"
        "        batch_size = get_bs(step)\n        train(batch_size)\nfit([0] * 5000)\n",
        1000,
    ),
    "micro-batches": (
        "for step in range(args.max_steps):\n    batch_size = get_bs(step)\n    train(batch_size, times=4)\n",
        1000,
    ),
    "the end": (
        "for step in range(args.max_steps):\n    batch_size = 2096 + step\n    train(batch_size)\n",
        1997,
    ),
    "after a warm-up, with a generator that is told": (
        "def batches(rows):\n    while True:\n        rows = (yield rows) or rows\n"
        "for bs in (256, 1024, 256):\n    for step in range(10):\n        train(bs)\n"
        "loader, before = batches(256), 256\n"
        "for step in range(args.max_steps):\n    batch_size = get_bs(step)\n"
        "    told = batch_size if batch_size != before else None\n    before = batch_size\n"
        "    train(loader.send(told))\n",
        1000,
    ),
    "before a validation": (
        "for step in range(args.max_steps):\n    if step % 250 == 0:\n        with torch.no_grad():\n"
        "            model(torch.zeros(64, 1024, device='cuda'))\n    batch_size = get_bs(step)\n"
        "    train(batch_size)\n",
        1001,
    ),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_three_iterations_are_run_where_the_size_is_largest(run: Run, program: Program, kind: str) -> None:
    lines, step = PROGRAMS[kind]

    found = run(f"python {program(HEAD + lines)}", batches=None, patience=None)

    assert ([each.step for each in found.steps_at], found.schedules, found.varying) == ([step], (), None)
    assert replay(found.trace.written_out()).peak_allocated_bytes > 2 * 4000 * 4096
    assert found.iterations < 60
    assert not found.is_whole


@pytest.mark.parametrize(
    ("size", "step"),
    [
        (lambda step: (1, 3, 2)[min(step // 41_234, 2)], 41_234),
        (lambda step: min(step, 77_777), 77_777),
        (lambda step: -abs(step - 12_345), 12_345),
        (lambda step: step, 99_999),
        (lambda _: 7, 0),
    ],
    ids=["in steps", "a ramp", "a peak", "to the end", "constant"],
)
def test_the_first_step_of_the_largest_size_is_found_by_few_numbers(size: Callable[[int], int], step: int) -> None:
    found: dict[int, dict[int, float]] = {}
    for number in numbers_to_try(0, 99_999, found):
        found[number] = {0: size(number)}

    assert max(found, key=lambda number: (found[number][0], -number)) == step
    assert len(found) <= 256


def test_two_sizes_are_met_where_each_is_largest_and_where_both_together_are(run: Run, program: Program) -> None:
    lines = """
for step in range(900):
    batch_size = (8, 24, 32)[step // 300]
    seq_len = (64, 48, 16)[step // 300]
    train(batch_size * seq_len)
"""
    found = run(f"python {program(HEAD + lines)}", batches=None, patience=None)

    assert ([each.step for each in found.steps_at], found.schedules) == ([300, 600], ())


@pytest.mark.parametrize(
    "lines",
    [
        "def draw(step):\n    return 1 + int(random.random() * (step + 9))\n"
        "for step in range(args.max_steps):\n    batch_size = draw(step)\n    train(batch_size)\n",
        "def ask(step):\n    import urllib.request\n    try:\n        urllib.request.urlopen(f'http://127.0.0.1/{step}')\n"
        "    except OSError:\n        if step > 9:\n            raise\n    return 256 + step\n"
        "for step in range(args.max_steps):\n    batch_size = ask(step)\n    train(batch_size)\n",
        "batch_size = 256\nfor step in range(args.max_steps):\n    if step in (900, 1800):\n        batch_size *= 4\n"
        "    train(batch_size)\n",
        "step = 0\nwhile random.random() >= 0:\n    batch_size = get_bs(step)\n    train(batch_size)\n    step += 1\n",
    ],
    ids=["random", "network", "by itself", "endless"],
)
def test_what_cannot_be_known_ahead_is_not_judged(run: Run, program: Program, lines: str) -> None:
    found = run(f"python {program(HEAD + lines)}", batches=None)

    assert found.steps_at == ()
    assert len(found.schedules) == 1


@pytest.mark.parametrize(
    "elsewhere",
    [
        "def train_more(train):\n    for step in range(9):\n        seq_len = 64 + step\n        train(seq_len)\n"
        "        loss.backward()\n        optimizer.step()\n",
        "class Old:\n    def advance(self):\n        self.num_updates += 1\n        self.seq_len = self.num_updates\n"
        "def train_more(batches):\n    for batch in batches:\n        loss.backward()\n        optimizer.step()\n",
    ],
    ids=["loop", "counter"],
)
def test_what_counts_in_lines_that_are_never_run_is_not_waited_for(
    run: Run, program: Program, tmp_path: Path, elsewhere: str
) -> None:
    (tmp_path / "elsewhere.py").write_text(elsewhere)
    lines = "def more():\n    import elsewhere\nbatches = [64] * 200\nwhile batches:\n    train(batches.pop())\n"

    found = run(f"python {program(HEAD + lines)}", batches=None, patience=None)

    assert found.iterations < 60


def test_the_program_sees_its_own_steps_until_then_and_nothing_of_the_search(
    run: Run, program: Program, tmp_path: object
) -> None:
    told = f"{tmp_path}/told"
    lines = (
        f"told = open({told!r}, 'a')\nfor step in range(args.max_steps):\n    print(step, file=told, flush=True)\n"
        "    batch_size = get_bs(step)\n    train(batch_size)\n"
    )
    run(f"python {program(HEAD + lines)}", batches=None, patience=None)

    with open(told) as file:
        numbers = [int(line) for line in file.read().replace("\0", "").split()]
    usual = len(numbers) - numbers.index(next(number for number in numbers if number > 100))
    assert numbers[:-usual] == [*range(len(numbers) - usual)]


def test_a_probe_in_what_is_compiled_breaks_no_graph(run: Run, program: Program) -> None:
    lines = """
@torch.compile(fullgraph=True)
def cut(x, step):
    batch_size = 4 + step
    return x[:batch_size] * 2

for step in range(args.max_steps):
    batch_size = get_bs(step)
    cut(torch.zeros(64, device="cuda"), step % 2)
    train(batch_size)
"""
    assert run(f"python {program(HEAD + lines)}", batches=None).iterations


def test_the_largest_step_is_a_moment_of_the_report(program: Program) -> None:
    path = program(HEAD + "for step in range(args.max_steps):\n    batch_size = get_bs(step)\n    train(batch_size)\n")
    found = judge("python", path)

    (ranks,) = found.rank_classes
    (moment,) = ranks.moments
    assert (moment.name, moment.phase) == ("step 1,000", Phase.BACKWARD)
    assert moment.allocated_bytes == ranks.peak.allocated_bytes
    assert "batch_size = get_bs(step)" in moment.sentence
    assert (found.verdict, ranks.judged_iterations) == (Verdict.FITS, 0)

    alone = judge("python", path, batches=0)
    assert (alone.verdict, alone.rank_classes[0].moments) == (Verdict.TIGHT, ())
    assert "more may be needed after iteration" in verdict_sentences(alone)[0]


def test_every_rank_counts_to_the_same_steps(program: Program) -> None:
    lines = "for step in range(args.max_steps):\n    batch_size = get_bs(step)\n    train(batch_size)\n"
    path = program("import torch.distributed as dist\ndist.init_process_group('nccl')\n" + HEAD + lines)

    found = judge("torchrun", "--nproc-per-node", "2", path)

    (ranks,) = found.rank_classes
    assert (ranks.ranks, found.verdict) == ("0-1", Verdict.FITS)

"""Where the sizes of batches vary, the largest one of the program's own data decides."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from program_runs import Program, Run, judge

from planner.allocator.replay import replay
from planner.events import Phase
from planner.report.statement import Verdict
from planner.report.verdict_text import verdict_sentences
from planner.tracing.batch_sizes import LargestBatches, varying

CASES = [
    "shuffled by torch's own", "batches of as many tokens", "a stream", "cropped at random", "packed", "workers",
    "accumulated", "shuffled by a generator", "sampled with replacement", "batches of one length",
    "padded to a multiple", "pictures", "pairs", "grouped by the Trainer",
]  # fmt: skip
EPOCH = 10_000
"""Steps: more than an epoch of any of them has."""


@pytest.mark.parametrize("case", CASES)
def test_the_largest_batch_of_an_epoch_is_met_early(run: Run, program: Program, case: str) -> None:
    path = Path(__file__).parent / "programs" / "varying_sizes.py"
    named = program(f"import sys, runpy\nsys.argv[1:] = [{case!r}]\nrunpy.run_path({str(path)!r}, run_name='__main__')")

    ahead = run(f"python {named}", batches=None, seconds=600)
    whole = run(f"python {named}", steps=EPOCH, seconds=600)

    (drawn,) = ahead.trace.drawn
    assert drawn.drawn == drawn.epoch
    assert ahead.iterations < whole.iterations
    assert replay(ahead.trace.written_out()).peak_allocated_bytes == pytest.approx(
        replay(whole.trace.written_out()).peak_allocated_bytes, rel=0.03
    )


LOOP = """
import random, sys, torch
from torch.utils.data import DataLoader, Dataset
class Crops(Dataset):
    drawn = 0
    def __len__(self):
        return 80
    def __getitem__(self, index):
        Crops.drawn += 1
        return torch.rand({length}, 16)
def pad(examples):
    return torch.nn.utils.rnn.pad_sequence(examples, batch_first=True)
model = torch.nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
told = open(sys.argv[1], "w")
for batch in DataLoader(Crops(), batch_size=8, collate_fn=pad, shuffle=True):
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    states = hash(random.getstate()), hash(tuple(torch.get_rng_state().tolist()))
    print(batch.shape[1], *states, Crops.drawn, file=told, flush=True)
"""
RANDOM = "random.randint(1, 500) + int(torch.randint(0, 500, ()))"


def test_random_numbers_and_data_of_the_program_stay_what_they_were(run: Run, program: Program, tmp_path: Path) -> None:
    lines = LOOP.format(length=RANDOM).replace("class", "random.seed(1); torch.manual_seed(1)\nclass", 1)
    told = []
    for batches in (None, 0):
        run(f"python {program(lines)} {tmp_path / 'told'}", batches=batches, patience=60)
        told.append([line.split() for line in (tmp_path / "told").read_text().splitlines()])

    ahead, alone = told
    assert [others for _, *others in ahead] == [others for _, *others in alone]
    lengths = [int(length) for length, *_ in alone]
    assert [int(length) for length, *_ in ahead[:4]] == lengths[:4]
    assert [int(length) for length, *_ in ahead[-2:]] == [max(lengths)] * 2


def test_batches_that_are_made_on_the_gpu_are_drawn_ahead_too(run: Run, program: Program, tmp_path: Path) -> None:
    lines = LOOP.format(length="20 + 7 * index").replace("batch_first=True)", "batch_first=True).cuda()")

    found = run(f"python {program(lines)} {tmp_path / 'told'}", batches=None)

    assert [drawn.drawn for drawn in found.trace.drawn] == [10]


def test_batches_of_one_size_are_left_alone(run: Run, program: Program, tmp_path: Path) -> None:
    lines = LOOP.format(length="30").replace("return 80", "return 83")

    found = run(f"python {program(lines)} {tmp_path / 'told'}", batches=None, patience=60)

    assert (found.trace.drawn, found.varying) == ((), None)
    assert [line.split()[0] for line in (tmp_path / "told").read_text().splitlines()] == ["30"] * 11


def test_of_many_batches_so_many_are_drawn_as_are_asked_for(run: Run, program: Program, tmp_path: Path) -> None:
    found = run(f"python {program(LOOP.format(length=RANDOM))} {tmp_path / 'told'}", batches=5)

    assert [(each.drawn, each.epoch) for each in found.trace.drawn] == [(5, 10)]


def test_loaders_of_one_loop_are_drawn_each(run: Run, program: Program, tmp_path: Path) -> None:
    loader, _, steps = LOOP.format(length="20 + 7 * index").partition("for batch in ")
    _, _, steps = steps.partition("\n")
    lines = loader.replace("def __len__", "size = 80\n    def __len__").replace("return 80", "return self.size")
    lines += "few, many = Crops(), Crops()\nfew.size = 16\nfor data in (few, many):\n"
    lines += "  for batch in DataLoader(data, batch_size=8, collate_fn=pad, shuffle=True):\n" + steps

    found = run(f"python {program(lines)} {tmp_path / 'told'}", batches=None)

    assert [(drawn.drawn, drawn.epoch) for drawn in found.trace.drawn] == [(2, 2), (10, 10)]


NO_LOADER = """
import torch
model = torch.nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
lengths = iter([100 + 7 * number % 50 for number in range(12)])
for _ in range(12):
    model(torch.rand(8, next(lengths), 16).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def sentences(lines: str, program: Program, *more: str, **options: int) -> str:
    return "; ".join(judge("python", program(lines), *more, **options).unseen)


def test_inputs_that_no_loader_gives_are_named_with_their_sizes(program: Program) -> None:
    said = sentences(NO_LOADER, program)

    assert re.search(
        r"the sizes of inputs vary: input \(\S+/program\.py:7\) is \[8, 100, 16\] to \[8, 149, 16\], in 12 shapes;"
        " larger ones may come, and are in no figure",
        said,
    )


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        (
            None,
            r"sizes of batches vary: the batch \(\S+/program\.py:11\) is .*, in \d+ shapes among 10 batches drawn",
        ),
        (4, r"among 4 of 10 batches drawn ahead; larger ones may come, and are in no figure \(--batches draws more\)"),
        (0, r"the sizes of inputs vary: input \(\S+/program\.py:17\) is"),
    ],
)
def test_the_report_says_how_far_sizes_vary(
    program: Program, tmp_path: Path, batches: int | None, expected: str
) -> None:
    said = sentences(LOOP.format(length=RANDOM), program, str(tmp_path / "told"), batches=batches)  # type: ignore[arg-type]

    assert re.search(expected, said)


def test_what_the_median_and_the_largest_batch_take_are_moments_of_the_report(program: Program, tmp_path: Path) -> None:
    statement = judge("python", program(LOOP.format(length="index + 1")), str(tmp_path / "told"))

    (ranks,) = statement.rank_classes
    assert [moment.name for moment in ranks.moments] == ["median batch", "largest batch"]
    assert re.fullmatch(
        r"The batch is \[8, 80, 16\]: of 10 batches 1 is at least as large\.", ranks.moments[-1].sentence
    )
    assert ranks.moments[-1].allocated_bytes == ranks.peak.allocated_bytes


ACCUMULATES = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
texts = [torch.zeros(1 + 7 * index % 400, 16) for index in range(400)]
def pad(examples):
    return torch.nn.utils.rnn.pad_sequence(examples, batch_first=True)
for epoch in range(9):
    for number, batch in enumerate(DataLoader(texts, batch_size=4, collate_fn=pad), start=1):
        model(batch.cuda()).sum().backward()
        if number % 20 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_of_batches_of_one_step_only_the_largest_has_its_figures(program: Program) -> None:
    (ranks,) = judge("python", program(ACCUMULATES)).rank_classes

    assert [moment.name for moment in ranks.moments] == ["largest batch"]
    assert ranks.moments[0].allocated_bytes == ranks.peak.allocated_bytes


@pytest.mark.parametrize("seed", range(8))
def test_the_batches_of_the_median_and_of_the_99_percent_are_those(seed: int) -> None:
    chance, batches = random.Random(seed), LargestBatches()
    sizes = [int(chance.lognormvariate(6, 0.05)) for _ in range(500)]
    for number, size in enumerate(sizes):
        batches.take({"x": (size,)}, number)

    said = varying([[shapes] for shapes in batches.seen])
    assert said is not None
    found = {about.name: sizes[number] for about, number in batches.chosen(said)}

    ordered = sorted(sizes)
    assert found == {"median batch": ordered[249], "99 % batch": ordered[494], "largest batch": ordered[-1]}


EVALUATES = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
lengths = torch.randperm(200).tolist()
texts = [torch.zeros(1 + length, 16) for length in lengths]
def pad(examples):
    return torch.nn.utils.rnn.pad_sequence(examples, batch_first=True)
for epoch in range(9):
    for batch in DataLoader(torch.zeros(32, 20, 16), batch_size=8):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(texts, batch_size=8, collate_fn=pad):
            model(batch.cuda())
    model.train()
"""


def test_the_largest_batch_of_an_evaluation_is_met_as_well(program: Program) -> None:
    statement = judge("python", program(EVALUATES))

    (ranks,) = statement.rank_classes
    last = ranks.moments[-1]
    assert (last.name, last.phase) == ("largest batch", Phase.EVAL)
    assert last.sentence.startswith("The batch is [8, 200, 16]")


def test_data_that_only_the_programs_own_process_can_draw_are_taken_as_they_come(
    run: Run, program: Program, tmp_path: Path
) -> None:
    lines = "import os\nowner = os.getpid()\n" + LOOP.format(length=RANDOM).replace(
        "Crops.drawn += 1", "assert os.getpid() == owner, 'another process'"
    )

    found = run(f"python {program(lines)} {tmp_path / 'told'}", batches=None)

    said = "batches of a DataLoader of Crops could not be drawn ahead: AssertionError: another process"
    assert said in [each.text for each in found.assumptions]
    assert found.trace.drawn == ()
    assert found.varying is not None


@pytest.mark.parametrize(
    ("lines", "batches", "verdict"),
    [(NO_LOADER, None, Verdict.TIGHT), (NO_LOADER.replace("7 * number % 50", "0"), None, Verdict.FITS)],
)
def test_what_may_grow_beyond_what_was_seen_is_not_said_to_fit(
    program: Program, lines: str, batches: int | None, verdict: Verdict
) -> None:
    statement = judge("python", program(lines), batches=batches)

    assert statement.verdict is verdict
    (sentence,) = verdict_sentences(statement)
    assert sentence.startswith("May not fit: " if verdict is Verdict.TIGHT else "Fits: ")
    assert (verdict is Verdict.TIGHT) == ("needed after iteration 12, as sizes vary" in sentence)


OWN_LINE = """
import itertools, random, torch
model = torch.nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
chance = random.Random(3)
def draw(step):
    return chance.randint(1, 500)
def growing():
    batch_size = 8
    while True:
        yield chance.randint(1, 500)
{before}
for number in range({steps}):
    {rows}
    model(torch.rand(rows, 16).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("steps", [12, 5000])
@pytest.mark.parametrize(
    ("before", "rows"),
    [
        ("examples = iter([draw(0) for number in range(5000)])", "rows = next(examples)"),
        ("examples = iter([draw(0) for number in range(90)])", "rows = torch.rand(next(examples), 2).shape[0]"),
        ("", "rows = torch.rand(draw(number), 2).shape[0]"),
        (
            "examples = iter([8 + 7 * number for number in range(40)])",
            "rows = torch.rand(next(examples) + 0 * number, 2).shape[0]",
        ),
        ("examples = growing()", "seq_len = 64 + number; rows = next(examples)"),
    ],
    ids=["an iterator", "tensors of an iterator", "drawn by the step", "an iterator that ends", "beside a schedule"],
)
def test_sizes_that_the_step_does_not_decide_are_named(program: Program, steps: int, before: str, rows: str) -> None:
    statement = judge("python", program(OWN_LINE.format(steps=steps, before=before, rows=rows)))

    assert statement.verdict is Verdict.TIGHT
    assert re.search(
        r"the sizes of inputs vary: input \(\S+program\.py:\d+\) is \[\d+, 16\] to", "; ".join(statement.unseen)
    )


CALLS = """
import copy, functools, random, torch
from torch import nn
def call(module, *given):
    return module(*given)
def through(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given)
    return inner
class Trainer:
    def __init__(self):
        self.model, self.criterion = model, criterion
    def loss(self, x, y):
        return self.criterion(self.model(x), y)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10)).cuda()
criterion = nn.CrossEntropyLoss()
first, second, head = nn.Linear(16, 32).cuda(), nn.Linear(32, 16).cuda(), nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *first.parameters(), *second.parameters(), *head.parameters()])
trainer, random, numbers = Trainer(), random.Random(1), iter(range(12))
def step_of(number, x, y, part):
    {step}
for _ in range(12):
    x = torch.rand(8, 3, 64, 64).cuda()
    y = x[:, 0, 0, 0].long()
    step_of(next(numbers), x, y, x[:, 0, 0, :16])
    optimizer.step()
    optimizer.zero_grad()
"""


def judge_calls(program: Program, step: str, **options: int) -> tuple[Verdict, list[str]]:
    """The verdict, and what is said of inputs whose sizes vary."""
    statement = judge("python", program(CALLS.format(step=step)), **options)
    return statement.verdict, [said for said in statement.unseen if "sizes of inputs vary" in said]


@pytest.mark.parametrize(
    "step",
    [
        "criterion(model(x), y).backward()",
        "criterion(input=model(input=x), target=y).backward()",
        "call(criterion, call(model, x), y).backward()",
        "call(nn.CrossEntropyLoss(), call(model, x), y).backward()",
        "for each in (first, second): part = each(part)\n    part.sum().backward()",
        "sum(each(part).sum() for each, part in ((first, part), (second, part.repeat(1, 2)))).backward()",
        "[criterion(output, y) for output in [model(x)]][0].backward()",
        "(lambda given: criterion(model(given), y))(x).backward()",
        "functools.partial(call, criterion)(functools.partial(call, model)(x), y).backward()",
        "criterion(\n        model(\n            x\n        ),\n        y,\n    ).backward()",
        "through(criterion)(through(model)(x), y).backward()",
        "trainer.loss(x, y).backward()",
        "functools.reduce(lambda given, each: each(given), (first, second), part).sum().backward()",
    ],
    ids=[
        "one line", "named arguments", "one function", "one function and a new loss", "a loop", "a generator",
        "a comprehension", "a lambda", "partial functions", "several lines", "a decorator", "a method", "reduce",
    ],
)  # fmt: skip
def test_different_models_called_at_one_place_are_no_input_that_varies(program: Program, step: str) -> None:
    assert judge_calls(program, step) == (Verdict.FITS, [])


SCALES = "sum(head(part[:1].expand({rows}, 16)).sum() for scale in {scales}).backward()"


@pytest.mark.parametrize(
    "step",
    [
        SCALES.format(rows="scale * scale", scales="range(1, 11)"),
        SCALES.format(rows="scale * scale", scales="random.sample(range(1, 11), 10)"),
        SCALES.format(rows="3 if number % 4 == 3 else 8, scale", scales="(1, 5, 9)"),
        "for rows in (900, 400, 100): head(part[:1].expand(rows, 16)).sum().backward()",
        "sum(call(head, part[:1].expand(rows, 16)).sum() for rows in (9, 400) if rows < 10 or number).backward()",
    ],
    ids=["scales", "scales in any order", "a cut batch", "a backward each", "a first step in part"],
)  # fmt: skip
def test_sizes_that_come_again_in_every_step_are_no_input_that_varies(program: Program, step: str) -> None:
    assert judge_calls(program, step) == (Verdict.FITS, [])


@pytest.mark.parametrize(
    ("step", "sizes"),
    [
        (SCALES.format(rows="scale * (8 + number)", scales="(1, 5, 9)"), r"\[8, 16\] to \[\d+, 16\], in"),
        (SCALES.format(rows="100 * scale", scales="(random.randint(1, 10),)"), r"\[\d00, 16\] to \[\d+00, 16\], in"),
        (SCALES.format(rows="100 * scale", scales="range(1, 2 + number // 2)"), r"\[100, 16\] to \[\d00, 16\], in"),
        (SCALES.format(rows="100 + scale", scales="(number // 3, 20)"), r"\[100, 16\] to \[120, 16\], in"),
        (
            "for _ in range(4): head(part[:1].expand(random.randint(1, 500), 16)).sum().backward()",
            r"\[\d+, 16\] to \[\d+, 16\], in \d\d",
        ),
        ("nn.Flatten()(head(part[:1].expand(9 + number, 16))).sum().backward()", r"\[9, 16\] to \[\d\d, 16\], in"),
        (
            "head(part)[:1].expand(9 + number, 64).backward(torch.ones(9 + number, 64).cuda())\n"
            "    copy.deepcopy(head)(part[:1].expand(9 + number, 16)).sum().backward()",
            r"\[9, 16\] to \[\d\d, 16\], in",
        ),
        (
            "head(part).sum().backward()\n    nn.Flatten()(part[:1].expand(9 + number, 16))",
            r"\[9, 16\] to \[\d\d, 16\], in",
        ),
    ],
    ids=[
        "scales of batches that vary", "one of the scales", "more scales with each step", "other scales in later steps",
        "batches of one step", "a model", "a copy of a model in each step", "a module that is made in each step",
    ],
)  # fmt: skip
def test_sizes_that_are_others_in_other_steps_vary(program: Program, step: str, sizes: str) -> None:
    verdict, said = judge_calls(program, step)

    assert verdict is Verdict.TIGHT
    assert re.search(rf"input \(\S+program\.py:\d+\) is {sizes}", "; ".join(said))


def test_of_one_step_alone_it_is_not_known_whether_its_sizes_come_again(program: Program) -> None:
    step = SCALES.format(rows="scale * scale", scales="range(1, 11)")
    once = program(CALLS.format(step=step).replace("in range(12):\n    x", "in range(1):\n    x"))

    assert judge("python", once).verdict is Verdict.TIGHT
    assert judge_calls(program, step, steps=2) == (Verdict.FITS, [])


def test_an_input_that_varies_beside_its_loss_in_one_line_is_named(program: Program) -> None:
    lines = NO_LOADER.replace("    model(", "    torch.nn.Flatten()(model(").replace(".sum()", ").sum()")

    assert re.search(r"input \(\S+py:7\) is \[8, 100, 16\] to \[8, 149, 16\], in 12 shapes", sentences(lines, program))


HOST_MODULES = """
import torch
class Crop(torch.nn.Module):
    def forward(self, image):
        return image[:20]
class Upload(torch.nn.Module):
    def forward(self, image):
        return image.cuda()[:20]
crop, upload, scale = Crop(), Upload(), torch.nn.Linear(16, 16)
model = torch.nn.Linear(16, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
sizes = iter(range(20, 140, 7))
for _ in range(12):
    image = torch.rand(next(sizes), 16)
    {batch}
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ("batch = crop(image).cuda()", Verdict.FITS),
        ("batch = crop(scale(image)).detach().cuda()", Verdict.FITS),
        ("batch = crop(image=image).cuda()", Verdict.FITS),
        ("batch = upload(image)", Verdict.TIGHT),
        ("batch = crop(image.cuda())", Verdict.TIGHT),
    ],
    ids=["no parameters", "with parameters", "named", "a module that moves it to the GPU", "a tensor on the GPU"],
)
def test_what_a_module_on_the_host_is_given_decides_nothing(program: Program, batch: str, expected: Verdict) -> None:
    assert judge("python", program(HOST_MODULES.format(batch=batch))).verdict is expected

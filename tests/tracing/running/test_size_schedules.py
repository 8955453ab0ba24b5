"""Programs whose sizes depend on the step say so, by their source."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent, indent

import pytest

from planner.tracing.program.size_schedules import say_schedules, sizes_by_step

LOOP = """
{before}
for step in range(10_000):
{batch}
    loss = model(x)
    loss.backward()
    optimizer.step()
"""


def found(source: str) -> list[tuple[str, int]]:
    return [
        (each.what, int(each.place.rpartition(":")[2]))
        for each in sizes_by_step({Path("train.py"): ast.parse(dedent(source))})
    ]


def of_loop(batch: str, before: str = "") -> list[str]:
    """What the size is of that depends on the step."""
    source = LOOP.format(before=dedent(before), batch=indent(dedent(batch), "    "))
    return sorted({what for what, _ in found(source)})


@pytest.mark.parametrize(
    ("batch", "before"),
    [
        ("batch_size = 8 if step < 900 else 64", ""),
        ("x = get_batch(batch_size=8 + step // 100)", ""),
        ("x = torch.randn(sizes[step // 100], 64)", ""),
        ("if step == 900:\n    batch_size *= 2", "batch_size = 8"),
        ("if step >= 900:\n    batch_size = 64", "batch_size = 8"),
        (
            "size = get_bs(step)\nx = next_batch(size)",
            "def get_bs(now):\n    if now > 9:\n        return 64\n    return 8",
        ),
        ("x = load(step)", "def load(now):\n    bs = table[now // 900]\n    return read(bs)"),
        ("x = loader.send((bs_schedule[step // 900], 1))", ""),
        ("x = [torch.rand(rows, 16) for rows in rows_at(step)]", ""),
        ("x = (lambda rows: torch.rand(rows * step, 16))(8)", ""),
    ],
)
def test_a_batch_by_the_step_is_found(batch: str, before: str) -> None:
    assert of_loop(batch, before) == ["batch"]


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ("seq_len = min(128 * (1 + step // 100), 2048)", "sequence"),
        ("x = tokens(window=get_ws(step))", "window"),
        ("x = resize(image, image_size=128 + step)", "image"),
    ],
)
def test_other_sizes_are_named_as_what_they_are(batch: str, what: str) -> None:
    assert of_loop(batch) == [what]


@pytest.mark.parametrize(
    ("batch", "before"),
    [
        ("x = data[step * batch_size:(step + 1) * batch_size]", "batch_size = 8"),
        ("x = get_batch(step)\nbatch_size, seq_len = x.shape", ""),
        ("x = get_batch(step)\nbatch_size = len(x)", ""),
        ("lr = get_lr(step)\nx = batch", "def get_lr(step):\n    return 1 / (step + 1)"),
        ("if step % 100 == 0:\n    batch_size = 64\n    evaluate(batch_size)", ""),
        ("bs = get_bs(0)\nx = batch", "def get_bs(step):\n    return table[step]\nfirst = get_bs(9)"),
        ("x = batch\nprint(step, seq_len)", "seq_len = 128"),
        ("if step == 0:\n    max_len = longest(batch)\nx = batch", ""),
        ("x = torch.rand(next(examples), 16)", "examples = iter([draw() for step in range(90)])"),
        ("x = [torch.rand(step, 16) for step in range(1, 9)]", ""),
        ("x = torch.rand(next(examples), 16)", "examples = map(lambda step: 8 * step, draws())"),
    ],
)
def test_what_does_not_change_with_the_step_is_not_named(batch: str, before: str) -> None:
    assert of_loop(batch, before) == []


def test_counters_of_other_loops_and_of_objects() -> None:
    assert found("""
        iter_num, batch_size = 0, 8
        while True:
            if iter_num > 900:
                batch_size = 64
            loss.backward()
            optimizer.step()
            iter_num += 1
    """) == [("batch", 5)]
    assert found("""
        class Trainer:
            def fit(self, loader):
                for batch in loader:
                    self.train_step(batch[:, : self.length()])

            def length(self):
                seq_len = 128 if self.global_step < 900 else 1024
                return seq_len

            def train_step(self, batch):
                self.model(batch).backward()
                self.optimizer.step()
                self.global_step += 1
    """) == [("sequence", 8)]


def test_a_program_that_does_not_train_has_no_steps() -> None:
    assert found("for step in range(9):\n    batch_size = 8 + step\n    model(torch.zeros(batch_size))") == []


def test_the_sentence_quotes_the_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOP.format(before="bs = 8", batch="    bs = get_bs(step)"))

    assert say_schedules(sizes_by_step({path: ast.parse(path.read_bytes())})) == (
        f"the size of the batch depends on the step at {tmp_path.name}/train.py:4 (bs = get_bs(step))",
    )

"""Results as large as values say: planned as large as they can be, listed as that, and refused under `--strict`."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.errors import TraceError
from planner.events import Alloc
from planner.tracing.program.assumptions import About

PROGRAM = """
import torch
model = torch.nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(6, 32, device="cuda")
tokens = torch.empty(50, dtype=torch.int64, device="cuda")
for _ in range(3):
    chosen = {expression}
    model(x[x.sum(1) > 0]).sum().backward()
    optimizer.step()
"""
MOST = "the most that there can be: how many there are depends on values"


@pytest.mark.parametrize(
    ("expression", "shape", "said"),
    [
        ("x[x.sum(1) > 0]", (6, 32), f"6 places selected ({MOST})"),
        ("x.masked_select(x > 0)", (192,), f"192 places selected ({MOST})"),
        ("torch.where(x > 0)[0]", (192,), f"192 places selected ({MOST})"),
        ("x[x.isnan()]", (0,), "0 places selected (aten.isnan: no value is out of order)"),
        ("x[x.isinf().any(1)]", (0, 32), "0 places selected (aten.any: no value is out of order)"),
        ("tokens.nonzero()", (50, 1), f"50 places selected ({MOST})"),
        ("tokens.unique(return_counts=True)[1]", (50,), f"50 distinct values ({MOST})"),
        ("(tokens > 3).unique()", (2,), f"2 distinct values ({MOST})"),
        ("tokens.unique_consecutive()", (50,), f"50 distinct values ({MOST})"),
        ("x.unique(dim=0)", (6, 32), f"6 distinct slices ({MOST})"),
        ("torch.where(x.view(12, 16).argmax(0) == 3)[0]", (2,), "2 places selected (each value is one of 12, evenly)"),
        ("x.argmax(1).bincount()", (32,), "32 bins (each value is one of 32)"),
        ("tokens.bincount(minlength=1000)", (1000,), "1,000 bins (as many as minlength asks for: no value is larger)"),
    ],
)
def test_as_large_as_it_can_be(run: Run, program: Program, expression: str, shape: tuple[int, ...], said: str) -> None:
    path = program(PROGRAM.format(expression=expression) + f"assert chosen.shape == {shape}, chosen.shape\n")

    found = run(f"python {path}")

    here = [each for each in found.assumptions if each.place.endswith("program.py:8")]
    assert [(each.about, each.text, each.count) for each in here] == [(About.VALUE, said, 3)]
    with pytest.raises(TraceError, match=r"the size of a result of aten\.\w+, which .* at program.py:8"):
        run(f"python {path}", strict=True)


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [("tokens.bincount()", "say minlength"), ("torch.repeat_interleave(tokens)", "say output_size")],
)
def test_what_has_no_largest_size_is_refused_with_what_to_say(
    run: Run, program: Program, expression: str, remedy: str
) -> None:
    with pytest.raises(TraceError, match=rf"at program.py:8[^$]*change: *{remedy}: there is no largest"):
        run(f"python {program(PROGRAM.format(expression=expression))}")


def test_the_backward_of_a_selection_is_as_large(run: Run, program: Program) -> None:
    found = run(f"python {program(PROGRAM.format(expression='None'))}")

    shapes = {each.origin.shape for each in found.trace.events if isinstance(each, Alloc) and each.origin}
    assert {(6, 32), (6, 8)} <= shapes

"""Programs that infer and train nothing: each forward that they call is an iteration."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.events import Mark
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.program.stopping import FORWARDS, Stopping

MODEL = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda().eval()
"""
LOOP = (
    MODEL
    + """
with {around}:
    for number in range({forwards}):
        model(torch.ones({batch}, 256, device="cuda"))
"""
)


def phases(run: RankRun) -> list[tuple[str, int]]:
    return [(each.phase.value, each.iteration) for each in run.trace.written_out() if isinstance(each, Mark)]


@pytest.mark.parametrize("around", ["torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"])
def test_one_that_ends_is_planned_by_its_forwards(run: Run, program: Program, around: str) -> None:
    found = run(f"python {program(LOOP.format(around=around, forwards=4, batch=2))}")

    assert (found.infers, found.is_whole, found.iterations) == (True, True, 4)
    assert phases(found) == [("forward", number) for number in range(1, 5)]
    assert found.seen["eval"] == 0
    assert any("planned as a program that infers" in each.text for each in found.assumptions)


def test_one_that_goes_on_is_ended_when_no_forward_raises_its_peaks(run: Run, program: Program) -> None:
    endless = LOOP.format(around="torch.no_grad()", forwards=10**9, batch="max(8 - number, 1)")

    found = run(f"python {program(endless)}")

    assert (found.infers, found.is_whole, found.iterations) == (True, False, FORWARDS + 1)
    assert found.ending == "ended after 6 forwards: it only infers, and none raised a peak in 0 s"


def test_one_whose_cache_grows_below_the_peak_of_its_prompt_goes_on(run: Run, program: Program) -> None:
    lines = LOOP.format(around="torch.no_grad()", forwards=60, batch="2 if number else 4096")
    cache = "cache = torch.empty(0, 64, device='cuda')\n" + lines
    grows = cache + "        cache = torch.cat([cache, torch.ones(64, 64, device='cuda')])\n"

    found = run(f"python {program(grows.replace('cache =', 'import torch; cache =', 1))}")

    assert (found.is_whole, found.iterations) == (True, 60)


@pytest.mark.parametrize("forwards", [9, 10**9])
def test_as_many_forwards_as_were_asked_for(run: Run, program: Program, forwards: int) -> None:
    found = run(f"python {program(LOOP.format(around='torch.no_grad()', forwards=forwards, batch=2))}", steps=7)

    assert (found.iterations, found.ending) == (7, "ended after 7 iterations, as asked for: it only infers")
    assert phases(found)[-1] == ("forward", 7)


def test_one_whose_words_say_that_it_trains_is_waited_for(run: Run, program: Program) -> None:
    lines = (
        LOOP.format(around="torch.no_grad()", forwards=20, batch=2)
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 256, device="cuda")).sum().backward()
optimizer.step()
"""
    )

    found = run(f"python {program(lines)}")

    assert (found.infers, found.iterations, found.seen["eval"]) == (False, 1, 1)


def test_one_that_has_made_an_optimizer_is_waited_for(run: Run, program: Program) -> None:
    made = 'getattr(torch, "optim").SGD(model.parameters())'
    lines = LOOP.format(around="torch.no_grad()", forwards=20, batch=2).replace("with", f"optimizer = {made}\nwith")

    found = run(f"python {program(lines)}")

    assert (found.infers, found.is_whole, found.iterations) == (True, True, 20)


CYCLES = """
class Kept: ...
held = []
with torch.no_grad():
    for number in range({forwards}):
        kept = Kept() if {before} else None
        result = model(torch.ones(2, 256, device="cuda"))
        kept = kept or Kept()
        kept.itself, kept.result = kept, result
        held.append(torch.cuda.memory_allocated())
        del kept, result
assert max(held) <= held[0] + {most} * 512, [each - held[0] for each in held]
"""


@pytest.mark.parametrize(("before", "forwards", "most"), [(False, 6, 2), (True, 200, 65)])
def test_garbage_is_collected_between_forwards(
    run: Run, program: Program, before: bool, forwards: int, most: int
) -> None:
    """What is born after a forward at once; what is born before it, and so is older, now and then."""
    path = program(MODEL + CYCLES.format(before=before, forwards=forwards, most=most))

    assert run(f"python {path}", patience=60).iterations == forwards


def test_peaks_that_rise_are_waited_for() -> None:
    now = [0.0]
    stopping = Stopping(patience_seconds=10.0, worked=lambda: now[0])
    ends = []
    for forwards in range(1, 60):
        now[0] += 1.0
        if stopping.has_inferred_enough(forwards, lambda forwards=forwards: (min(forwards, 25), 1)):  # type: ignore[misc]
            ends.append(forwards)

    assert ends[0] == 35  # they are looked at after 5 forwards, and then every ten seconds

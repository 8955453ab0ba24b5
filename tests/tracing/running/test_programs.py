"""Unedited programs on one GPU: what they do, what they learn, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from program_runs import Program, Run

from planner import paper
from planner.allocator.replay import replay
from planner.errors import TraceError
from planner.events import Alloc, Category, Mark, Phase, Role
from planner.planning.program_ranks import do_the_same
from planner.tracing.program import rank_process
from planner.tracing.program.assumptions import About
from planner.tracing.program.rank_orders import RankRun


def texts(found: RankRun) -> list[str]:
    return [f"{each.place}: {each.text}" for each in found.assumptions]


def test_a_loop_with_scaler_evaluation_and_checkpoint(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("out") / "checkpoint.pt"

    found = run(f"python {{programs}}/classifier.py --out {path}")

    ending = "ended after 3 iterations: its peak has not risen since iteration 2, and nothing new came in 0 s"
    assert (found.ending, found.iterations) == (ending, 3)
    assert found.seen == {"eval": 1, "save": 1, "load": 0}
    marks = [(each.phase, each.iteration) for each in found.trace.events if isinstance(each, Mark)]
    assert marks[0] == (Phase.FORWARD, 1)
    assert (Phase.EVAL, 2) in marks
    assert marks[-1][1] == 3
    assert "programs/classifier.py:98: a value of float32 read as 6.238" in " ".join(texts(found))
    assert path.stat().st_blocks * 512 < path.stat().st_size / 10


def test_two_optimizers_and_workers_that_load_data(run: Run) -> None:
    found = run("python {programs}/adversaries.py")

    assert found.iterations == 3
    assert ": a DataLoader's workers load in the program's own process" in texts(found)


def test_a_collator_that_asks_its_worker_for_the_dataset(run: Run, program: Program) -> None:
    lines = """
import torch
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

def collate(rows):
    assert get_worker_info().dataset is data
    return torch.stack([row for row, in rows])

data, model = TensorDataset(torch.randn(64, 8)), torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for batch in DataLoader(data, batch_size=8, num_workers=2, collate_fn=collate):
    assert get_worker_info() is None
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""

    assert run(f"python {program(lines)}").iterations == 3


def test_a_checkpoint_is_loaded_again(run: Run) -> None:
    found = run("python {programs}/resumed.py")

    assert found.seen == {"eval": 0, "save": 1, "load": 1}
    phases = [each.phase for each in found.trace.written_out() if isinstance(each, Mark)]
    assert phases.index(Phase.CHECKPOINT_LOAD) < len(phases) - 1


def test_transformers_trainer(run: Run) -> None:
    found = run("python {programs}/fine_tune.py")

    roles = {each.category for each in found.trace.events if isinstance(each, Role)}
    assert {Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE} <= roles
    modules = {each.origin.module for each in found.trace.events if isinstance(each, Alloc) and each.origin}
    assert "model.layers.1.mlp.up_proj" in modules


def test_a_program_that_is_run_until_it_reads_its_peak_has_what_it_prints(run: Run, program: Program) -> None:
    """The read in its loop comes before the steps that were asked for, what it takes after its last one is left out."""
    path = program("""
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(6):
    torch.cuda.max_memory_allocated()
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    model(torch.ones(8192, 1024, device="cuda"))
print(torch.cuda.max_memory_allocated())
kept = torch.ones(1 << 28, device="cuda")
model(kept[:1024]).sum().backward()
optimizer.step()
""")

    found = run(f"python {path}", steps=6, until_read=True)

    assert found.ending == "ended when it read the statistics of its memory after 6 iterations, as asked for"
    assert 2 * 8192 * 1024 * 4 < found.counted["max_allocated_bytes"] < 1 << 28


def test_an_optimizer_made_in_the_place_of_another_goes_on_with_its_iterations(run: Run, program: Program) -> None:
    text = """
import torch

model, unused = torch.nn.Linear(8, 8, device="cuda"), []
for batch in (1, 2, 4):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(batch, 8, device="cuda")).sum().backward()
        optimizer.step()
    del optimizer
    unused.append(torch.optim.SGD([torch.ones(1, requires_grad=True)]))  # where that one was
"""

    found = run(f"python {program(text)}", steps=5)

    marks = [each for each in found.trace.written_out() if isinstance(each, Mark)]
    steps = [mark.iteration for mark in marks if mark.phase is Phase.OPTIMIZER_STEP]
    assert (found.iterations, steps) == (5, [1, 2, 3, 4, 5])


def test_a_program_is_followed_to_its_second_evaluation(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("out") / "checkpoint.pt"

    found = run(f"python {{programs}}/classifier.py --eval-every 20 --out {path}", patience=60)

    assert found.ending == (
        "ended after 40 iterations: its peak has not risen since iteration 2, and everything was seen"
    )
    assert found.seen == {"eval": 2, "save": 1, "load": 0}
    repeated = {each.iterations: each.times for each in found.trace.repeats}
    assert repeated[1] >= 15
    assert len(found.trace.events) * 3 < len(found.trace.written_out())


def test_strict_answers_nothing_that_is_not_known(run: Run) -> None:
    with pytest.raises(TraceError, match=r"reads a value of a tensor of shape \(\) and dtype bool at classifier.py:93"):
        run("python {programs}/classifier.py", strict=True)


def test_it_learns_its_own_memory(run: Run, program: Program) -> None:
    path = program("""
import torch
free, total = torch.cuda.mem_get_info()
batch = total // 2**30
model = torch.nn.Linear(batch, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.zeros(batch, batch, device="cuda")).sum().backward()
    optimizer.step()
    used = torch.cuda.max_memory_allocated()
keep = torch.empty(used, dtype=torch.uint8, device="cuda")
model(torch.zeros(2, batch, device="cuda")).sum().backward()
optimizer.step()
""")

    found = run(f"python {path}")

    events = found.trace.events
    kept = next(number for number, each in enumerate(events) if isinstance(each, Alloc) and _is_bytes(each))
    asked = events[kept]
    assert isinstance(asked, Alloc)
    assert asked.requested_bytes == max(replay(events).allocated_bytes[:kept])
    assert any(isinstance(each, Alloc) and each.origin and each.origin.shape == (79, 79) for each in events)


def _is_bytes(event: Alloc) -> bool:
    return event.origin is not None and event.origin.dtype == "uint8" and event.origin.op == "aten.empty"


def test_the_allocators_settings_are_those_of_its_first_memory(run: Run, program: Program) -> None:
    path = program("""
import os
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import torch
model = torch.nn.Linear(4, 4).cuda()
torch.cuda.memory_allocated()
os.environ["PYTORCH_ALLOC_CONF"] = "max_split_size_mb:64"
torch.cuda.set_per_process_memory_fraction(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(2, 4, device="cuda")).sum().backward()
optimizer.step()
""")

    found = run(f"python {path}")

    assert (found.allocator_conf, found.memory_fraction) == ("expandable_segments:True", 0.5)


def test_the_same_program_has_the_same_events(run: Run) -> None:
    first, second = (run("python {programs}/adversaries.py").trace.events for _ in range(2))

    assert do_the_same(first, second)


def test_what_building_a_model_drops_is_gone_before_its_first_forward(run: Run, program: Program) -> None:
    """bitsandbytes' layers and their weights refer to each other: one that is replaced at once is garbage."""
    path = program("""
import torch
class Layer:
    def __init__(self):
        self.weight, self.itself = torch.empty(1 << 20, dtype=torch.uint8, device="cuda"), self
model = torch.nn.Linear(4, 4).cuda()
model.register_forward_pre_hook(lambda *_: held.append(torch.cuda.memory_allocated()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
layer, held = Layer(), []
layer = Layer()
model(torch.zeros(2, 4, device="cuda")).sum().backward()
optimizer.step()
print(held[0], file=open(__file__ + ".held", "w"))
""")

    run(f"python {path}")

    assert int(Path(f"{path}.held").read_text()) >> 20 == 1


def test_a_program_that_catches_what_a_forward_raised_goes_on_with_its_phases(run: Run, program: Program) -> None:
    lines = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
try:
    model(torch.zeros(2, 3, device="cuda"))
except RuntimeError:
    pass
for _ in range(3):
    model(torch.zeros(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    marks = [each for each in run(f"python {program(lines)}").trace.written_out() if isinstance(each, Mark)]

    assert [each.iteration for each in marks if each.phase is Phase.FORWARD] == [1, 2, 3]


def test_a_program_that_switches_garbage_collection_off_keeps_its_cycles(run: Run, program: Program) -> None:
    lines = """
import gc, torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
assert gc.isenabled()
{}
for step in range(3):
    cycle = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda")]
    cycle.append(cycle)
    model(torch.zeros(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    held = torch.cuda.memory_allocated()
print(held, file=open(__file__ + ".held", "w"))
"""
    found = []
    for first in ("", "gc.disable()"):
        path = program(lines.format(first))
        kept = [each.text for each in run(f"python {path}").assumptions if each.about is About.HOST][-1]
        found.append((int(Path(f"{path}.held").read_text()) >> 20, "off" in kept))

    assert [found[1][0] - found[0][0], found[0][1], found[1][1]] == [2, False, True]


def test_a_library_that_is_refused_is_the_error_of_the_rank_and_not_of_the_server_that_forks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def refuse(_arch: str) -> Iterator[None]:
        raise TraceError("deepspeed 0.1 is not as planner knows it", allowed="0.19", remedy="install it")
        yield

    monkeypatch.setattr(paper, "gpu", refuse)

    rank_process.preload()

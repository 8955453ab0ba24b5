"""Programs that compile are compiled for the paper GPU, as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import pytest
from program_runs import Run

from planner.allocator.replay import replay
from planner.errors import TraceError
from planner.events import Alloc, Role
from planner.paper.recorder import Recorder
from planner.tracing.program import compiling
from planner.tracing.program.assumptions import About
from planner.tracing.program.rank_orders import RankRun

PROGRAM = "{programs}/compiled.py"


def allocated_bytes(run: RankRun) -> int:
    return replay(run.trace.written_out()).peak_allocated_bytes


def test_a_compiled_model_takes_less_than_the_eager_one(run: Run) -> None:
    eager, compiled = run(f"python {PROGRAM} eager", steps=3), run(f"python {PROGRAM} model", steps=3)

    assert allocated_bytes(compiled) < allocated_bytes(eager)
    assert len(compiled.trace.written_out()) < len(eager.trace.written_out())


def test_a_model_behind_ddp_is_compiled_bucket_by_bucket(run: Run) -> None:
    compiled = run(f"torchrun --nproc-per-node 4 {PROGRAM} ddp", rank=3, steps=3)

    assert compiled.iterations == 3
    assert [each.text for each in compiled.assumptions if each.about is About.COMPILING and "timed" in each.text] == []


def test_dynamo_without_torch_compile_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nimport torch._dynamo\ntorch._dynamo.optimize('eager')(lambda x: x + 1)(torch.ones(2).cuda())"
    )

    with pytest.raises(TraceError, match="compiles by other means"):
        run(f"python {program}")


def test_a_program_may_compile_for_as_long_as_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def enable(_recorder: object, *, seconds: float, as_asked: bool) -> AbstractContextManager[None]:
        assert not as_asked
        asked.append(seconds)
        return nullcontext()

    monkeypatch.setattr(compiling, "enable", enable)
    program = compiling.ProgramCompiling(cast("Recorder", None), seconds=5400)

    program._enabling(lambda model: model)("model")

    assert asked == [5400]


def test_collectives_in_a_compiled_step_and_an_operator_that_says_other_strides_than_it_returns(run: Run) -> None:
    found = run("torchrun --nproc-per-node 8 {programs}/compiled_collectives.py", rank=1)

    assert found.iterations == 3
    states = {each.block for each in found.trace.events if isinstance(each, Role) and "momentum" in each.name}
    sizes = [each.requested_bytes for each in found.trace.events if isinstance(each, Alloc) and each.block in states]
    assert sizes == [512 * 256 * 4 // 8]
    said = " ".join(each.text for each in found.assumptions if each.about is About.COMPILING)
    assert "the operator programs::turn returns strides that its own register_fake does not say" in said
    assert "reduce_scatter_tensor, which torch 2.13 has deprecated, is called as before that" in said
    assert "all_gather_into_tensor, which torch 2.13 has deprecated, is called as before that" in said


SHARED_BY_ALL = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")

@torch.compile
@torch.no_grad()
def share(scores):
    shares = scores.exp()
    for _ in range(3):
        total = shares.sum(0, keepdim=True)
        dist.all_reduce(total)
        shares = shares / total
    return shares

model = torch.nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    scores = model(torch.randn(4, 32, device="cuda"))
    (scores * share(scores)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_collective_breaks_no_graph(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHARED_BY_ALL)

    found = run(f"torchrun --nproc-per-node 8 {program}", rank=1)

    assert found.iterations == 3
    assert [each.text for each in found.assumptions if each.about is About.COMPILING] == []


WHOLE_STEP = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

@torch.compile
def step():
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

@torch.compile
def scale(x):
    return x * x.sum().item()

for _ in range(3):
    model(scale(torch.randn(4, 512, device="cuda"))).sum().backward()
    step()
    optimizer.zero_grad()
"""


def test_graphs_break_where_torch_itself_breaks_them(run: Run, tmp_path: Path) -> None:
    """Around a step by its own call, and at a value that is read; the step is seen all the same."""
    program = tmp_path / "program.py"
    program.write_text(WHOLE_STEP)

    found = run(f"python {program}")

    assert found.iterations == 3
    states = {each.name for each in found.trace.events if isinstance(each, Role) and "exp_avg" in each.name}
    assert states == {"weight.exp_avg", "weight.exp_avg_sq", "bias.exp_avg", "bias.exp_avg_sq"}
    broke = [each.text.partition(" Explanation")[0] for each in found.assumptions if each.about is About.COMPILING]
    assert broke == [
        "A graph broke: Unsupported Tensor.item() call with capture_scalar_outputs=False",
        "A graph broke: Call to `torch._dynamo.graph_break()`",
    ]

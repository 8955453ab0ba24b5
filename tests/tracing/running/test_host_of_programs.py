"""What a program holds on the host, by phase: tensors to the byte, pinned memory, batches that are read ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_alone import printed_by
from program_runs import Program, Run

from planner.allocator.host.replay import HostTimeline, PinnedRules, condense, replay_host
from planner.errors import SpecError
from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.job.shorthand import read_host_memory
from planner.tracing.program.rank_orders import RankRun
from planner.units import GIB, MIB

HERE = Path(__file__).parent
WIDTH, LAYERS, ROWS = 256, 12, 40
WEIGHTS = LAYERS * WIDTH * WIDTH * 4
"""A bias is less than a page."""
DATA, BATCH = ROWS * WIDTH * 4, 8 * WIDTH * 4

LOADING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_device("cpu")
if __name__ == "__main__":
    model = torch.nn.Linear(1000, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.randn(64, 1000))
    for (batch,) in DataLoader(rows, batch_size=8, num_workers=3, pin_memory=True):
        model(batch.cuda()).sum().backward()
        optimizer.step()
"""
STAYING = """
import sys
import torch
from safetensors.torch import load_file, save_file
MIB = 2**20
folder = sys.argv[1]
save_file({"weight": torch.ones(3 * MIB)}, folder + "/all.safetensors")
model = torch.nn.Linear(1024, 512)                                    # stays on the host, and is stepped there
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    kept = torch.empty(3 * MIB, dtype=torch.uint8).pin_memory() if step == 1 else None
    mapped = load_file(folder + "/all.safetensors") if step == 1 else None
    (model(torch.zeros(4, 1024)).cuda().sum() + torch.zeros(1, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def phases_of(run: RankRun) -> HostTimeline:
    return replay_host(run.trace.host, PinnedRules())


def test_a_model_that_is_built_gathered_saved_and_loaded_on_the_host(run: Run, tmp_path: Path) -> None:
    found = phases_of(run(f"python {{programs}}/host_heavy.py cuda {tmp_path} {WIDTH}", steps=5))

    held = {moment: parts.total() for moment, parts in found.items()}
    assert held[Phase.LOAD, 0] == WEIGHTS
    assert DATA + BATCH <= held[Phase.FORWARD, 1] < WEIGHTS
    assert held[Phase.CHECKPOINT_SAVE, 3] == 2 * WEIGHTS + DATA + BATCH
    assert held[Phase.CHECKPOINT_LOAD, 4] == held[Phase.CHECKPOINT_SAVE, 3]
    assert held[Phase.FORWARD, 5] < 2 * WEIGHTS


KNOWN = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mask, places = torch.ones(1024, 2048, dtype=torch.bool, device="cuda"), torch.arange(1 << 20, device="cuda")
for _ in range(3):
    never = torch.logical_not(mask, out=torch.empty_like(mask))
    assert (len(mask.nonzero()), len(never.nonzero()), len(places.unique())) == (1024 * 2048, 0, 1 << 20)
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_what_is_known_of_the_gpu_is_no_memory_of_the_host(run: Run, program: Program) -> None:
    found = run(f"python {program(KNOWN)}", steps=3)

    assert all(each.bytes < MIB for each in found.trace.host if isinstance(each, HostAlloc))


def test_workers_read_ahead_what_there_is_of_batches(run: Run, program: Program) -> None:
    found = run(f"python {program(LOADING)}", steps=3)

    (ahead,) = (each for each in found.trace.host if isinstance(each, HostAlloc) and each.count > 1)
    assert (ahead.bytes, ahead.pinned, ahead.count) == (8 * 4000, True, 6)
    assert phases_of(found)[Phase.FORWARD, 1][HostCategory.BATCH] == 6 * 32768  # pinned: blocks of a power of two


def test_what_stays_on_the_host_is_told_apart(run: Run, program: Program, tmp_path: Path) -> None:
    found = phases_of(run(f"python {program(STAYING)} {tmp_path}"))

    step = found[Phase.OPTIMIZER_STEP, 2]
    weight = 1024 * 512 * 4
    assert step == {
        HostCategory.PARAMETER: weight, HostCategory.GRADIENT: weight, HostCategory.OPTIMIZER_STATE: 2 * weight,
        # 3 MiB, pinned and rounded; what the optimizer's step takes meanwhile. A mapped file is not held.
        HostCategory.OTHER: 4 * MIB + 2 * weight,
    }  # fmt: skip
    assert found[Phase.OPTIMIZER_STEP, 3] == step  # torch does not say what it keeps


def held(block: int, size: int) -> HostAlloc:
    return HostAlloc(block, size, HostCategory.OTHER)


def test_what_is_never_there_at_a_highest_point_is_left_out() -> None:
    told: list[HostEvent] = [
        held(1, 10), held(2, 5), HostFree(2), held(3, 20), HostFree(3), HostFree(1), held(4, 25), HostFree(4),
        Mark(Phase.FORWARD, 1), held(5, 1),
    ]  # fmt: skip

    assert list(condense(told)) == [
        held(1, 10), held(3, 20), HostFree(3), HostFree(1), Mark(Phase.FORWARD, 1), held(5, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("written", "size"), [("", 0), ("480GiB", 480 * GIB), (4096, 4096), ("0", 0)])
def test_what_a_node_has_is_read_as_a_size(written: str | int, size: int) -> None:
    assert read_host_memory(written, "--host-memory") == size


@pytest.mark.parametrize("written", ["much", "-1GiB", "2000TiB", -1])
def test_what_is_no_size_is_refused_with_its_place(written: str | int) -> None:
    with pytest.raises(SpecError, match="such as 480GiB") as refused:
        read_host_memory(written, "--host-memory")

    assert refused.value.place == "--host-memory"


def test_a_real_process_holds_in_each_phase_what_was_predicted(run: Run, tmp_path: Path) -> None:
    """The same program, on a device without memory: what is resident is the host's."""
    program = HERE / "programs" / "host_heavy.py"
    measured: dict[str, int] = printed_by(HERE / "resident_phases.py", str(program), "meta", str(tmp_path))
    predicted: dict[str, int] = {}
    for (phase, _), parts in phases_of(run(f"python {program} cuda {tmp_path}", steps=5)).items():
        predicted[phase.value] = max(predicted.get(phase.value, 0), parts.total())

    assert measured.keys() == predicted.keys()
    assert measured["load"] > 190e6
    assert measured["checkpoint_save"] > 390e6
    assert predicted == pytest.approx(measured, rel=0.05)

"""What a program holds on the host, by phase: tensors to the byte, pinned memory, workers, files; and the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_alone import printed_by
from program_runs import Program, Run

from planner.allocator.host.nodes import ProgramHost, state_program_hosts
from planner.allocator.host.processes import PinnedRules
from planner.allocator.host.replay import HostPhase, RankTimeline, condense, replay_host
from planner.errors import SpecError
from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostBlock, HostCategory, HostEvent, HostFree, LoaderEnded, LoaderStarted
from planner.job.rank_sets import RankSet
from planner.job.schema import DataLoader
from planner.job.shorthand import read_host_memory
from planner.tracing.program.host_memory import find_tensors
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


def timeline_of(run: RankRun) -> RankTimeline:
    return replay_host(run.trace.host, base=(), loader=DataLoader(), rules=PinnedRules())


def phases_of(run: RankRun) -> dict[tuple[Phase, int], HostPhase]:
    return {(each.phase, each.iteration): each for each in timeline_of(run).phases}


def test_a_model_that_is_built_gathered_saved_and_loaded_on_the_host(run: Run, tmp_path: Path) -> None:
    found = phases_of(run(f"python {{programs}}/host_heavy.py cuda {tmp_path} {WIDTH}", steps=5))

    data, kept = {HostCategory.OTHER: DATA, HostCategory.BATCH: BATCH}, {HostCategory.OTHER: WEIGHTS + DATA}
    assert found[Phase.LOAD, 0].own == {HostCategory.PARAMETER: WEIGHTS}
    assert {**found[Phase.FORWARD, 1].own, **data} == found[Phase.FORWARD, 1].own
    assert found[Phase.CHECKPOINT_SAVE, 3].own == {
        **kept, HostCategory.BATCH: BATCH, HostCategory.CHECKPOINT: WEIGHTS,
    }  # fmt: skip
    assert found[Phase.CHECKPOINT_LOAD, 4].own == found[Phase.CHECKPOINT_SAVE, 3].own
    assert found[Phase.FORWARD, 5].own.get(HostCategory.CHECKPOINT) is None


def test_workers_read_ahead_what_there_is_of_batches(run: Run, program: Program) -> None:
    found = run(f"python {program(LOADING)}", steps=3)

    (started,) = (each for each in found.trace.host if isinstance(each, LoaderStarted))
    assert replace(started, loader=0) == LoaderStarted(
        loader=0, workers=3, ahead=6, pin_memory=True, spawned=False, tensors=(8 * 4000,)
    )
    batches = phases_of(found)[Phase.FORWARD, 1].own[HostCategory.BATCH]
    assert batches == 7 * 32768 + 8 * 4000  # pinned blocks of a power of two, and the one that is being pinned


def test_what_stays_on_the_host_is_told_apart(run: Run, program: Program, tmp_path: Path) -> None:
    found = phases_of(run(f"python {program(STAYING)} {tmp_path}"))

    step = found[Phase.OPTIMIZER_STEP, 2]
    weight = 1024 * 512 * 4
    assert {name: step.own[name] for name in (HostCategory.PARAMETER, HostCategory.GRADIENT)} == {
        HostCategory.PARAMETER: weight, HostCategory.GRADIENT: weight,
    }  # fmt: skip
    assert step.own[HostCategory.OPTIMIZER_STATE] == 2 * weight
    assert step.own[HostCategory.OTHER] == 4 * MIB  # pinned: 3 MiB, rounded
    (mapped,) = step.files.items()
    assert mapped[0].endswith("all.safetensors")
    assert 12 * MIB <= mapped[1] < 12 * MIB + 4096
    assert found[Phase.OPTIMIZER_STEP, 3].own[HostCategory.OTHER] == 4 * MIB  # torch does not say what it keeps
    assert not found[Phase.OPTIMIZER_STEP, 3].files


def held(block: int, size: int) -> HostAlloc:
    return HostAlloc(block, HostBlock(bytes=size, category=HostCategory.OTHER))


def test_what_is_never_there_at_a_highest_point_is_left_out() -> None:
    told: list[HostEvent] = [
        held(1, 10), held(2, 5), HostFree(2), held(3, 20), HostFree(3), HostFree(1), held(4, 25), HostFree(4),
        Mark(Phase.FORWARD, 1), held(5, 1),
    ]  # fmt: skip

    assert list(condense(told)) == [
        held(1, 10), held(3, 20), HostFree(3), HostFree(1), Mark(Phase.FORWARD, 1), held(5, 1),
    ]  # fmt: skip


def ranks(first: int, last: int, *events: HostEvent) -> ProgramHost:
    return ProgramHost(
        representative=first, ranks=RankSet(((first, last),)), events=events, transformers=False, assumed=()
    )


def test_the_rank_that_saves_finds_the_others_as_they_were_before() -> None:
    trains = [held(1, 1000 * MIB), HostFree(1), Mark(Phase.OPTIMIZER_STEP, 1), held(2, 10 * MIB)]
    saves = [Mark(Phase.CHECKPOINT_SAVE, 1), held(3, 500 * MIB), HostFree(3)]
    hosts = [ranks(0, 0, *trains, *saves), ranks(1, 7, *trains)]

    found = state_program_hosts(hosts, ranks_per_node=8, capacity_bytes=0, conf="")

    (node,) = found.nodes
    base = node.phases[0].bytes - 8 * 1000 * MIB
    assert [(each.phase, each.bytes - base) for each in node.phases] == [
        (Phase.LOAD, 8000 * MIB), (Phase.OPTIMIZER_STEP, 80 * MIB), (Phase.CHECKPOINT_SAVE, 580 * MIB),
    ]  # fmt: skip
    assert [(each.representative, each.count) for each in node.local_ranks] == [(0, 1), (1, 7)]
    assert found.verdict is None


def test_a_loader_that_ended_holds_nothing_and_spawned_workers_are_larger() -> None:
    def started(loader: int, *, spawned: bool) -> LoaderStarted:
        return LoaderStarted(
            loader=loader, workers=2, ahead=4, pin_memory=False, spawned=spawned, tensors=(MIB,)
        )  # fmt: skip

    told = [
        started(1, spawned=False), LoaderEnded(1),
        Mark(Phase.EVAL, 1), Mark(Phase.FORWARD, 2), started(3, spawned=True),
    ]  # fmt: skip

    load, evaluation, forward = replay_host(told, base=(), loader=DataLoader(), rules=PinnedRules()).phases

    assert load.own == {HostCategory.BATCH: 4 * MIB, HostCategory.WORKER: 2 * (37 + 1) * MIB}
    assert not evaluation.own
    assert forward.own == {HostCategory.BATCH: 4 * MIB, HostCategory.WORKER: 2 * (354 + 1) * MIB}


def test_tensors_are_found_in_what_holds_itself() -> None:
    tensor, other = torch.zeros(1), torch.zeros(2)
    state: dict[str, Any] = {"weight": tensor, "rest": [other, ("text", 3)]}
    state["itself"] = state

    assert [each.numel() for each in find_tensors(state)] == [1, 2]


@pytest.mark.parametrize(("written", "size"), [("", 0), ("480GiB", 480 * GIB), (4096, 4096), ("0", 0)])
def test_what_a_node_has_is_read_as_a_size(written: str | int, size: int) -> None:
    assert read_host_memory(written, "--host-memory") == size


@pytest.mark.parametrize("written", ["much", "-1GiB", "2000TiB", -1])
def test_what_is_no_size_is_refused_with_its_place(written: str | int) -> None:
    with pytest.raises(SpecError, match="such as 480GiB") as refused:
        read_host_memory(written, "--host-memory")

    assert refused.value.place == "--host-memory"


def test_a_program_whose_node_is_too_small_does_not_fit() -> None:
    told = [Mark(Phase.OPTIMIZER_STEP, 1), held(1, 4 * GIB)]

    verdicts = [
        state_program_hosts([ranks(0, 7, *told)], ranks_per_node=8, capacity_bytes=size * GIB, conf="").verdict
        for size in (32, 44, 64)
    ]

    assert verdicts == ["exceeds", "tight", "fits"]


@pytest.mark.soak
def test_a_real_process_holds_in_each_phase_what_was_predicted(run: Run, tmp_path: Path) -> None:
    """The same program, on a device without memory: what is resident is the host's."""
    program = HERE / "programs" / "host_heavy.py"
    measured: dict[str, int] = printed_by(HERE / "resident_phases.py", str(program), "meta", str(tmp_path))
    predicted: dict[str, int] = {}
    for each in timeline_of(run(f"python {program} cuda {tmp_path}", steps=5)).phases:
        predicted[each.phase.value] = max(predicted.get(each.phase.value, 0), sum(each.own.values()))

    assert measured.keys() == predicted.keys()
    assert measured["load"] > 190e6
    assert measured["checkpoint_save"] > 390e6
    assert predicted == pytest.approx(measured, rel=0.05)

"""Programs recorded on real GPUs, run on paper: what they allocate, in which order, and what that makes reserved.

tests/data/recorded_programs.json holds the recorded figures with their sources. The order of allocations and frees is
there as a digest; where the snapshots themselves are at hand (PLANNER_TRUTH), the digest is taken from them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from other_gpus import printed_on

from planner.allocator.replay import replay
from planner.allocator.snapshot import read_snapshot
from planner.allocator.timeline import Timeline
from planner.events import Alloc, Event

ROOT = Path(__file__).parents[3]
RECORDED = json.loads((ROOT / "tests/data/recorded_programs.json").read_text())
ALLOCATED_WITHIN, RESERVED_WITHIN = 0.005, 0.01


@dataclass(frozen=True)
class Run:
    """What a program did: its events, and where the part that was recorded begins."""

    events: list[Event]
    begin: int

    def recorded_part(self) -> list[Event]:
        return self.events[self.begin :]

    def sizes(self) -> dict[int, int]:
        return {e.block: e.requested_bytes for e in self.events if isinstance(e, Alloc)}

    def changes(self) -> list[tuple[str, int]]:
        """`+` and `-` with the bytes that were asked for."""
        sizes = self.sizes()
        return [("+" if isinstance(e, Alloc) else "-", sizes[e.block]) for e in self.recorded_part()]

    def peaks(self) -> tuple[int, int]:
        timeline = replay(self.events)
        return highest(timeline, self.begin), timeline.peak_reserved_bytes


def highest(timeline: Timeline, begin: int) -> int:
    return max(timeline.allocated_bytes[begin:])


RUN_ALL = """
import pickle, sys
from planner import paper
from planner.events import Alloc, Free
from recorded_language_models import PROGRAMS

found = {}
for name, run in PROGRAMS.items():
    at = {"begin": []}
    with paper.gpu("sm_86") as gpu:
        def note(moment):
            at[moment] = [event for event in gpu.recorder.events() if isinstance(event, Alloc | Free)]
        run(lambda: note("begin"), lambda: note("end"))
    found[name] = at["end"], len(at["begin"])
with open(sys.argv[1], "wb") as file:
    pickle.dump(found, file)
"""


@cache
def all_on_paper() -> dict[str, Run]:
    """Both GPUs took workspaces of 8,519,680 bytes: neither Hopper nor Blackwell."""
    with NamedTemporaryFile() as file:
        printed_on("sm_86", RUN_ALL, file.name)
        return {name: Run(*run) for name, run in pickle.load(file).items()}


def on_paper(name: str) -> Run:
    return all_on_paper()[name]


def order(changes: Iterable[tuple[str, int]]) -> str:
    """A digest of allocations and frees in their order; frees without an allocation between them have none."""
    lines: list[str] = []
    freed: list[int] = []
    for sign, size in [*changes, ("+", 0)]:
        if sign == "-":
            freed.append(size)
            continue
        lines += [f"-{each}" for each in sorted(freed)]
        lines += [f"+{size}"] if size else []
        freed = []
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def off(predicted: int, recorded: int) -> float:
    return abs(predicted - recorded) / recorded


@pytest.mark.parametrize("name", RECORDED["programs"])
def test_a_program_allocates_and_frees_on_paper_what_it_did_on_the_gpu_in_the_same_order(name: str) -> None:
    changes, recorded = on_paper(name).changes(), RECORDED["programs"][name]

    assert sum(sign == "+" for sign, _ in changes) == recorded["allocations"]
    assert order(changes) == recorded["order"]


@pytest.mark.parametrize("name", RECORDED["programs"])
def test_its_peaks_are_those_of_the_gpu(name: str) -> None:
    allocated, reserved = on_paper(name).peaks()
    recorded = RECORDED["programs"][name]

    assert off(allocated, recorded["peak_allocated_bytes"]) <= ALLOCATED_WITHIN
    assert off(reserved, recorded["peak_reserved_bytes"]) <= RESERVED_WITHIN


@pytest.mark.parametrize("name", [name for name in RECORDED["programs"] if name.startswith("lm4")])
def test_a_program_recorded_from_its_start_is_exact_to_the_byte(name: str) -> None:
    recorded = RECORDED["programs"][name]

    assert on_paper(name).peaks() == (recorded["peak_allocated_bytes"], recorded["peak_reserved_bytes"])


def born_in(run: Run, op: str) -> set[int]:
    return {e.block for e in run.events if isinstance(e, Alloc) and e.origin is not None and e.origin.op == op}


def without(run: Run, dropped: set[int]) -> Run:
    return Run([e for e in run.events if e.block not in dropped], run.begin)  # type: ignore[union-attr]


def test_without_the_workspaces_of_cublas_it_would_not_pass() -> None:
    run = on_paper("lm4-train-ctx100-fp32")
    recorded = RECORDED["programs"]["lm4-train-ctx100-fp32"]
    workspaces = born_in(run, "cublas.workspace")

    assert len(workspaces) == 2
    assert off(without(run, workspaces).peaks()[0], recorded["peak_allocated_bytes"]) > ALLOCATED_WITHIN


def test_without_one_of_them_it_would_not_pass_either() -> None:
    run = on_paper("lm4-train-ctx100-fp32")
    recorded = RECORDED["programs"]["lm4-train-ctx100-fp32"]
    workspace = min(born_in(run, "cublas.workspace"))

    assert off(without(run, {workspace}).peaks()[0], recorded["peak_allocated_bytes"]) > ALLOCATED_WITHIN


def test_without_the_masks_of_attention_the_order_would_not_be_that_of_the_gpu() -> None:
    run = on_paper("lm4-train-ctx200-fp32")
    masks = born_in(run, "aten.bitwise_not")

    assert len(masks) == 12
    assert order(without(run, {min(masks)}).changes()) != RECORDED["programs"]["lm4-train-ctx200-fp32"]["order"]


def test_without_the_buffers_of_reductions_the_order_would_not_be_that_of_the_gpu() -> None:
    run = on_paper("lm4-train-ctx200-fp32")
    buffers = {e.block for e in run.events if isinstance(e, Alloc) and e.requested_bytes == 8388608}

    assert len(buffers) == 27
    assert order(without(run, buffers).changes()) != RECORDED["programs"]["lm4-train-ctx200-fp32"]["order"]


@pytest.mark.parametrize("name", RECORDED["programs"])
def test_the_figures_are_those_of_the_snapshot(name: str) -> None:
    path = Path(os.environ.get("PLANNER_TRUTH", ROOT.parent / "shared" / "truth")) / "snapshots" / f"{name}.pickle.xz"
    if not path.exists():
        reason = f"PLANNER_TRUTH: {path} is not there"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    trace = read_snapshot(path).traces[0]
    changes = [
        ("+" if entry.action == "alloc" else "-", entry.size)
        for entry in trace
        if entry.action in ("alloc", "free_completed")
    ]

    assert order(changes) == RECORDED["programs"][name]["order"]

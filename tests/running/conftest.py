"""Programs for the tests, each in a child that one server forks: PyTorch is loaded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from program_runs import Run

from planner.hardware import catalog
from planner.tracing.launching.line import parse
from planner.tracing.program.rank_orders import Announced, BroadcastNumber, Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS, lasting_server, run_rank

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def run() -> Run:
    """On an H100; what the programs write stays, in folders of the tests."""
    known = catalog.by_name("H100-SXM-80GB")
    assert known is not None
    gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes, outside_bytes=2**30)

    def run_command(
        command: str, *, rank: int = 0, steps: int = 0, strict: bool = False, seconds: float = 120,
        patience: float | None = 0, packages: tuple[str, ...] = (), kernels: str = "", otherwise: str = "",
        heard: tuple[Announced, ...] = (), numbers: tuple[BroadcastNumber, ...] = (), torch: str = "",
        target: str = "", is_known: bool = False, steps_at: tuple[int, ...] = (),
        until_read: bool = False, gpus: int = 0, batches: int | None = 0,
    ) -> RankRun:  # fmt: skip
        order = ProgramOrder(
            line=parse(command.format(programs=PROGRAMS).split(), node_gpus=gpus), rank=rank,
            gpu=replace(gpu, name=known.name if is_known else ""), steps=steps,
            patience_seconds=patience, strict=strict, writes=True, packages=packages, kernels=kernels,
            otherwise=otherwise, heard=heard, numbers=numbers, torch=torch, target=target, steps_at=steps_at,
            until_read=until_read, batches=batches,
        )  # fmt: skip
        return run_rank(order, replace(USUAL_LIMITS, seconds=seconds), lasting_server())

    return run_command


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """A program of these lines; its path."""

    def write(lines: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(lines, encoding="utf-8")
        return str(path)

    return write

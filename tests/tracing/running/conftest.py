"""Programs for the tests, each in a child that one server forks: PyTorch is loaded once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program_runs import BESIDE, Program, Run

from planner.hardware import catalog
from planner.job.launching.line import parse
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS, lasting_server, run_rank

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def run() -> Run:
    """What the programs write stays, in folders of the tests."""

    def run_command(
        command: str, *, gpu_name: str = "H100-SXM-80GB", seconds: float = 600, patience: float | None = 0,
        is_known: bool = False, gpus: int = 0, **asked: Any,
    ) -> RankRun:  # fmt: skip
        known = catalog.by_name(gpu_name)
        assert known is not None
        gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes, outside_bytes=2**30)
        order = ProgramOrder(
            line=parse(command.format(programs=PROGRAMS, beside=BESIDE).split(), node_gpus=gpus),
            gpu=replace(gpu, name=known.name if is_known else ""),
            patience_seconds=patience,
            writes=True,
            **{"rank": 0, **asked},
        )
        return run_rank(order, replace(USUAL_LIMITS, seconds=seconds), lasting_server())

    return run_command


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A program of these lines; its path."""

    def write(lines: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(lines, encoding="utf-8")
        return str(path)

    return write

"""Programs on paper with the kernels of a CPU, beside what they really took on one (tests/programs/cpu_programs.py)."""

from __future__ import annotations

import cpu_programs
import pytest
from program_runs import Run

from planner.allocator.replay import replay

TOLERANCE = 0.005
"""On a CPU the data, which a program on paper keeps on the host, counts too: 0.3 % of the Trainer's peak."""


@pytest.fixture(scope="module")
def measured() -> dict[str, int]:
    found = cpu_programs.read()
    if found is None:
        pytest.skip("measured with other software than this: make cpu-programs")
    assert set(found) == set(cpu_programs.COMMANDS)
    return found


@pytest.mark.parametrize("name", list(cpu_programs.COMMANDS))
def test_it_asks_for_as_much_as_on_a_cpu(run: Run, measured: dict[str, int], name: str) -> None:
    found = run(cpu_programs.command(name), target="cpu")

    assert replay(found.trace.written_out()).peak_requested_bytes == pytest.approx(measured[name], rel=TOLERANCE)


def test_kernels_of_a_gpu_would_be_noticed(run: Run, measured: dict[str, int]) -> None:
    name = "convolutions, evaluation"

    found = run(cpu_programs.command(name))

    assert replay(found.trace.written_out()).peak_requested_bytes != pytest.approx(measured[name], rel=TOLERANCE)

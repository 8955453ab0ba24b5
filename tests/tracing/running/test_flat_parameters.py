"""Programs that wrap with FullyShardedDataParallel (FSDP 1) by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_bytes import most_kept, trained
from program_runs import Run

from planner.events import Category, Role

PROGRAM = Path(__file__).parent / "programs" / "flat_parameters.py"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--original", "--accumulate", "2"),
        ("--strategy", "SHARD_GRAD_OP", "--mixed"),
        ("--strategy", "NO_SHARD", "--mixed"),
        ("--accumulate", "3", "--unreduced"),
    ],
    ids=" ".join,
)
def test_each_rank_keeps_what_it_keeps_over_gloo(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    """Flat parameters, their gradients and the optimizer's state, to the byte."""
    line = " ".join(["torchrun --nproc-per-node 2 {programs}/flat_parameters.py", *options])

    on_paper = [most_kept(run(line, rank=rank).trace.written_out()) for rank in range(2)]

    assert on_paper == trained(PROGRAM, tmp_path, *options)


def test_what_a_unit_takes_is_named(run: Run) -> None:
    found = run("torchrun --nproc-per-node 2 {programs}/flat_parameters.py --mixed")

    roles = {(each.category, each.name) for each in found.trace.events if isinstance(each, Role)}

    unit = "1._flat_param"
    assert roles >= {
        (Category.PARAMETER, unit),
        (Category.PARAMETER, f"{unit} (gathered)"),
        (Category.COMMUNICATION, f"{unit} (low precision)"),
        (Category.COMMUNICATION, "reduce_gradient"),
        (Category.GRADIENT, f"{unit} (whole)"),
        (Category.GRADIENT, unit),
        (Category.OPTIMIZER_STATE, f"{unit}.exp_avg"),
    }

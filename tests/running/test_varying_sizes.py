"""Where the sizes of batches vary, the largest one of the program's own data decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Run

from planner.allocator.replay import replay

CASES = [
    "shuffled by a generator", "shuffled by torch's own", "sampled with replacement", "batches of one length",
    "batches of as many tokens", "padded to a multiple", "a stream", "cropped at random", "packed", "pictures", "pairs",
    "workers", "accumulated", "grouped by the Trainer",
]  # fmt: skip
EPOCH = 10_000
"""Steps: more than an epoch of any of them has."""


@pytest.mark.parametrize("case", CASES)
def test_the_largest_batch_of_an_epoch_is_met_early(run: Run, program: Callable[[str], str], case: str) -> None:
    path = Path(__file__).parent / "programs" / "varying_sizes.py"
    named = program(f"import sys, runpy\nsys.argv[1:] = [{case!r}]\nrunpy.run_path({str(path)!r}, run_name='__main__')")

    ahead = run(f"python {named}", batches=None)
    whole = run(f"python {named}", steps=EPOCH)

    (drawn,) = ahead.drawn
    assert drawn.drawn == drawn.epoch
    assert ahead.iterations < whole.iterations
    assert replay(ahead.trace.written_out()).peak_allocated_bytes == pytest.approx(
        replay(whole.trace.written_out()).peak_allocated_bytes, rel=0.03
    )

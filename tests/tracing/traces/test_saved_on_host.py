"""What a save takes of the host, beside the resident set of a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "saved_on_host.py"


# glibc keeps what is freed for later: of get_state_dict's gradients of zeros, freed just before the checkpoint is
# staged, some megabytes or none, as the threads come. With a mapping for each tensor what is freed is given back.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def taken(kind: str) -> int:
    environment = {**os.environ, **GIVE_BACK, "PYTHONPATH": str(PROGRAM.parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(PROGRAM), kind]
    return int(subprocess.check_output(command, env=environment, timeout=300))


def test_what_waits_to_be_written_is_what_the_resident_set_grows_by() -> None:
    paper = taken("paper")

    assert paper > 100 * 10**6
    assert taken("real") == pytest.approx(paper, rel=0.05)

"""What a save takes of the host, beside the resident set of a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "saved_on_host.py"


def taken(kind: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(PROGRAM), kind]
    return int(subprocess.check_output(command, env=environment, timeout=300))


def test_what_waits_to_be_written_is_what_the_resident_set_grows_by() -> None:
    paper = taken("paper")

    assert paper > 100 * 10**6
    # On a busy machine a process sometimes holds more than it needs, and never less.
    assert any(taken("real") == pytest.approx(paper, rel=0.05) for _ in range(3))

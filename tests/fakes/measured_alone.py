"""Scripts that measure resident memory: each in an interpreter of its own, with one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from planner.units import MIB


def printed_by(script: Path, *arguments: str) -> Any:
    """The JSON that the script prints. Blocks from 1 MiB on go back to the system when they are freed."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(MIB)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

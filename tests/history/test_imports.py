"""The history is read by processes that never trace: it loads neither torch nor Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_importing_the_history_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys, planner.service.history.store, planner.service.history.database;"
        "print([name for name in ('torch', 'transformers', 'ray', 'numpy', 'pydantic') if name in sys.modules])"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)

    assert ended.stdout == "[]\n"

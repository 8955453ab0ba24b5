"""An `nvidia-smi` for programs that write its answer into their log: it lists the GPUs that a program is given."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from planner.units import MIB

_SCRIPT = """#!/bin/sh
if [ $# -gt 0 ] && [ "$1" != -L ]; then
  echo "nvidia-smi of planner run knows -L and no other option, not: $*" >&2
  exit 2
fi
cat <<'END'
{lines}
END
"""


@contextmanager
def on_the_path(product: str, total_bytes: int, count: int) -> Iterator[None]:
    """Inside, `nvidia-smi`, alone or with -L, has a line for each GPU of a node; what else it is asked it refuses."""
    lines = "\n".join(f"GPU {index}: {product}, {total_bytes // MIB} MiB (on paper)" for index in range(count))
    with tempfile.TemporaryDirectory(prefix="planner-smi-") as folder:
        script = Path(folder, "nvidia-smi")
        script.write_text(_SCRIPT.format(lines=lines), encoding="utf-8")
        script.chmod(0o700)
        with mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}):
            yield

"""Commands that programs start on their node: `nvidia-smi` lists its GPUs, `scontrol` the names of the job's nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from planner.runtime.child import temporary_folder
from planner.tracing.program.rank_orders import Gpu
from planner.units import MIB

_NVIDIA_SMI = """#!/bin/sh
for word; do
  [ "$word" = -L ] && continue
  echo "nvidia-smi of planner run lists the GPUs (-L), and does not know: $word" >&2
  exit 2
done
cat <<'END'
{lines}
END
"""
_SCONTROL = """#!/bin/sh
case "$*" in
  show\\ hostname*) ;;
  *) echo "scontrol of planner run shows the names of the job's nodes, and does not know: $*" >&2; exit 2 ;;
esac
seq -f node%.0f "$SLURM_JOB_NUM_NODES"
"""
"""Of a job on paper, whose nodes no Slurm knows: job.launching.schedulers names them."""


@contextmanager
def node_commands(gpu: Gpu, count: int) -> Iterator[None]:
    """Inside, the commands come first in PATH, `scontrol` in a job of Slurm only; the node has `count` GPUs."""
    lines = "\n".join(f"GPU {index}: {gpu.product}, {gpu.total_bytes // MIB} MiB (on paper)" for index in range(count))
    scripts = {"nvidia-smi": _NVIDIA_SMI.format(lines=lines)}
    if "SLURM_JOB_NUM_NODES" in os.environ:
        scripts["scontrol"] = _SCONTROL
    with temporary_folder("commands-") as folder:
        for name, text in scripts.items():
            script = Path(folder, name)
            script.write_text(text, encoding="utf-8")
            script.chmod(0o700)
        with mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}):
            yield

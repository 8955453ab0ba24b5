"""Prints what Python and its libraries hold in a process here: the table of planner/allocator/host/processes.py.

`OMP_NUM_THREADS=1 python tests/host/measure_processes.py [transformers]`: MiB of its own (anonymous) and of files.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def held() -> str:
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    sizes = {row[0]: int(row[1]) / 1024 for row in rows}
    return f"{sizes['Anonymous:']:7.1f} own {sizes['Pss_File:']:7.1f} files"


def main(further: list[str]) -> None:
    print(f"python {held()}")
    for name in ("torch", "torch.distributed.fsdp"):
        importlib.import_module(name)
        print(f"{name} {held()}")
    import torch

    layer = torch.nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    print(f"a step {held()}")
    for name in further:
        importlib.import_module(name)
        print(f"{name} {held()}")


if __name__ == "__main__":
    main(sys.argv[1:])

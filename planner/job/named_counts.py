"""Reads how many GPUs a program's own arguments name, for programs that start a rank for each (YOLOX's `-d 8`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.job.size_limits import MOST_RANKS

_COUNTS = {
    "d", "devices", "gpus", "gpus_per_node", "n_gpu", "n_gpus", "ngpu", "ngpus", "ngpus_per_node", "nproc",
    "nproc_per_node", "num_devices", "num_gpu", "num_gpus", "num_processes", "tasks_per_node", "world_size",
}  # fmt: skip
"""YOLOX's tools/train.py (`-d`), Detectron2's default_argument_parser (`--num-gpus`), Lightning's command line
(`--trainer.devices`), MAE's submitit_finetune.py (`--ngpus`), and their kind."""
_LISTS = _COUNTS | {"device", "gpu", "gpu_id", "gpu_ids"}
"""Ultralytics' `device=0,1,2,3`, MMDetection's `--gpu-ids`: one number is which GPU, several are several."""
_ARGUMENT = re.compile(r"(?:-{1,2})?(?:[A-Za-z_]\w*[.])*([A-Za-z][\w-]*)(?:=(.*))?")


@dataclass(frozen=True, slots=True)
class NamedCount:
    """So many GPUs, as `written`."""

    gpus: int
    written: str


def named_count(arguments: Sequence[str]) -> NamedCount | None:
    """The first of a program's arguments that names several GPUs; None without one."""
    for place, argument in enumerate(arguments):
        found = _ARGUMENT.fullmatch(argument[:200])
        if found is None:
            continue
        name, value, written = found[1].replace("-", "_").lower(), found[2], argument
        if value is None and argument.startswith("-"):
            value = arguments[place + 1][:1000] if place + 1 < len(arguments) else ""
            written = f"{argument} {value}"
        items = [item for item in re.split(r"[,\s]+", (value or "").strip("[]()\"' ")) if item]
        if not items or not all(item.isdecimal() and len(item) < 6 for item in items):
            continue
        count = len(items) if len(items) > 1 and name in _LISTS else int(items[0]) if name in _COUNTS else 0
        if 1 < count <= MOST_RANKS:
            return NamedCount(count, written)
    return None

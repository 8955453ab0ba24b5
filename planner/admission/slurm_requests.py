"""Reads what a Slurm job asks for of GPUs in the options of sbatch: how many, which, and which slices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.admission.gpu_requests import GpuRequest, gpus_meant
from planner.admission.kubernetes_api import MOST
from planner.hardware import mig

_GRES = re.compile(r"(?:gres[:/])*gpu(?::([^:,=]+))?(?:[:=]([0-9]{1,8}))?", re.IGNORECASE)
_NODES = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8}))?")
_UNSET_NODES = "1-0"
"""What cli_filter has where nobody said how many (src/common/slurm_opt.c, arg_get_nodes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """What a job asks for. `gpus` are all of it together; 0: it asks for none, or the options leave it open."""

    requests: tuple[GpuRequest, ...] = ()
    gpus: int = 0
    features: tuple[str, ...] = ()
    """Those GPUs that its nodes must have by `--constraint`."""

    @property
    def products(self) -> tuple[str, ...]:
        """What its GPUs are called, each once."""
        of_requests = dict.fromkeys(request.product for request in self.requests if request.product)
        return tuple(of_requests) or (self.features if len(self.features) == 1 else ())


def read_gres(written: str) -> tuple[GpuRequest, ...]:
    """What Slurm's --gres or tres_per_node says: `gpu:2`, `gpu:1g.10gb:1`, `gpu:a100_3g.20gb:1`, `gres/gpu:h100=8`."""
    requests = []
    for word in written.split(","):
        match = _GRES.fullmatch(word.strip()[:200])
        if match is None:
            continue
        kind, count = match[1] or "", match[2]
        if count is None and kind.isdecimal():
            kind, count = "", kind
        requests.append(
            GpuRequest(
                resource="gpu",
                count=min(int(count or 1), MOST),
                product=mig.without_profile(kind).replace("_", " ").strip(),
                profile=mig.profile_in(kind),
            )
        )
    return tuple(request for request in requests if request.count)


def read_options(options: Mapping[str, str]) -> SlurmRequest:
    """`options` are as Slurm's cli_filter has them, by the names that sbatch has for them; what is unset is empty."""
    words = re.split(r"[^A-Za-z0-9_.-]+", options.get("constraint", ""))[:100]
    features = tuple(dict.fromkeys(word for word in words if word and gpus_meant(word)))
    nodes, tasks = _nodes_and_tasks(options)
    # --gpus is of the whole job, and stands where others are given too (sbatch(1)).
    for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gpus-per-task", tasks), ("gres", nodes)):
        written = options.get(name, "")
        if name != "gres":  # [TYPE:]NUMBER, several with commas
            written = ",".join(f"gpu:{word}" for word in written.split(",") if word)
        if requests := read_gres(written):
            gpus = min(sum(request.count for request in requests) * times, MOST)
            requests = tuple(replace(request, count=min(request.count * max(times, 1), MOST)) for request in requests)
            return SlurmRequest(requests=requests, gpus=gpus, features=features)
    return SlurmRequest(features=features)


def _nodes_and_tasks(options: Mapping[str, str]) -> tuple[int, int]:
    """0 where the options leave it open."""
    written, tasks, each = options.get("nodes", ""), _count(options, "ntasks"), _count(options, "ntasks-per-node")
    match = _NODES.fullmatch(written)
    if match is None or written == _UNSET_NODES:
        nodes = -(-tasks // each) if each else int(tasks <= 1)
    else:
        nodes = int(match[1]) if match[2] in (None, match[1]) else 0
    return nodes, tasks if tasks > 1 else nodes * max(each, 1)  # one that nobody said is one on each node


def _count(options: Mapping[str, str], name: str) -> int:
    written = options.get(name, "")
    return min(int(written), MOST) if re.fullmatch("[0-9]{1,8}", written) else 0

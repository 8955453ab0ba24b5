"""Reads what a pod, or a Slurm job, asks for of GPUs: how many, which, and which MIG slice of each.

Of a share, which others use too, only that it is one: the spec says how large (`cluster.gpu_fraction`, `gpu_memory`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.admission.kubernetes_api import MOST, number, part, parts, text_of
from planner.hardware import catalog, mig
from planner.hardware.gpus import GpuRecord
from planner.job import named_gpus
from planner.job.schema import Gpu, Job

GPU, AMD_GPU = "nvidia.com/gpu", "amd.com/gpu"
_SHARED = ".shared"
"""Behind a resource of which several containers take turns (NVIDIA/k8s-device-plugin, sharing.timeSlicing and
sharing.mps with renameByDefault), and in capitals behind such a node's product label."""
_MIG = "nvidia.com/mig-"
_SHARES = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "volcano.sh/vgpu-number")
"""Resources of a share: Project-HAMi/HAMi and Project-HAMi/volcano-vgpu-device-plugin, README."""
_SHARE_ANNOTATIONS, _SHARE_COUNT = ("gpu-fraction", "gpu-memory"), "gpu-fraction-num-devices"
"""Of a pod, in the place of a resource: kai-scheduler/KAI-Scheduler@d5bc503, pkg/common/constants/constants.go."""
_MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""A variable of a container: what a client of CUDA's Multi-Process Service may have (NVIDIA's MPS guide)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """`count` equal GPUs, or parts of so many, that one container asks for."""

    container: str = ""
    resource: str = GPU
    """As the API calls it."""
    count: int
    product: str = ""
    """Which GPU, as far as it is said: a label's value, a name, words of one."""
    profile: str = ""
    shared: bool = False
    """Others use the GPU too."""

    def gpu(self, planned: str = "") -> GpuRecord | None:
        """The GPU or slice of the catalog: that of its product, else of the GPU that is planned; None where neither
        says which."""
        named = self.product or planned
        known = catalog.by_node_label(named) or catalog.by_name(named)
        if known is None and len(meant := catalog.by_any_name(named[:100])) > 0:
            known = next((gpu for gpu in meant if gpu.usual), meant[0])
        if known is None or not self.profile:
            return known
        return catalog.slice_of(known, self.profile)


def read_gpu_requests(pod: Mapping[str, Any], annotations: Mapping[str, Any]) -> tuple[GpuRequest, ...]:
    """What each container of a pod's `spec` asks for, in their order; none where it asks for no GPU.

    `annotations` are the pod's (`template.metadata.annotations`). What is not as the API has it asks for nothing.
    """
    product = text_of(part(pod, "nodeSelector").get(catalog.PRODUCT_LABEL))
    takes_turns, containers = product.endswith(_SHARED.replace(".", "-").upper()), parts(pod, "containers")
    requests = [
        replace(request, product=product, shared=request.shared or takes_turns or _has_limit(container))
        for container in containers
        for request in _of_resources(container)
    ]
    if not requests and containers and any(annotations.get(name) for name in _SHARE_ANNOTATIONS):
        first, count = text_of(containers[0].get("name")), number(annotations.get(_SHARE_COUNT), 1)
        requests.append(GpuRequest(container=first, count=count, product=product, shared=True))
    return tuple(requests)


def _of_resources(container: Mapping[str, Any]) -> Iterator[GpuRequest]:
    """Limits first: of what cannot be shared, requests are equal to them."""
    resources = part(container, "resources")
    asked = {**part(resources, "requests"), **part(resources, "limits")}
    has_share = any(number(asked.get(name)) for name in _SHARES)
    for name, value in asked.items():
        whole = str(name).removesuffix(_SHARED)
        if not (whole.startswith(_MIG) or whole in (GPU, AMD_GPU, "volcano.sh/vgpu-number")) or not number(value):
            continue
        yield GpuRequest(
            container=text_of(container.get("name")),
            resource=name,
            count=number(value),
            profile=mig.profile_in(whole) if whole.startswith(_MIG) else "",
            shared=whole != name or (has_share and whole != AMD_GPU),
        )


def _has_limit(container: Mapping[str, Any]) -> bool:
    return any(variable.get("name") == _MPS_LIMIT for variable in parts(container, "env"))


_GRES = re.compile(r"(?:gres[:/])?gpu(?::([^:,=]+))?(?:[:=]([0-9]{1,8}))?", re.IGNORECASE)


def read_gres(written: str) -> tuple[GpuRequest, ...]:
    """What Slurm's --gres, --gpus or tres_per_node says: `gpu:2`, `gpu:1g.10gb:1`, `gpu:a100_3g.20gb:1`,
    `gres/gpu:h100=8`."""
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


def combine(requests: Sequence[GpuRequest]) -> GpuRequest | None:
    """The part of a GPU that a job has to fit: where containers ask for different ones, the smallest; None without a
    request."""

    def total_bytes(request: GpuRequest) -> int:
        gpu = request.gpu()
        return gpu.total_bytes if gpu is not None else 1 << 62

    return min(requests, key=total_bytes, default=None)


def plan_part(job: Job, requests: Sequence[GpuRequest]) -> tuple[Job, list[str]]:
    """The job on the MIG slice that is asked for, and what its owner should know about that. Raises SpecError for
    several ranks on slices."""
    asked, cluster = combine(requests), job.cluster
    if asked is None:
        return job, []
    gpu, notes = asked.gpu(cluster.gpu.name), []
    if asked.profile and gpu is None:
        of = asked.product or cluster.gpu.name or "the GPU of the spec"
        notes.append(f"{of} has no MIG slice {asked.profile} that planner knows: planned as the spec says")
    elif gpu is not None and gpu.slice:
        named_gpus.refuse_ranks_on_slice(gpu.name, cluster.nodes * cluster.gpus_per_node, asked.resource)
        if gpu.name != cluster.gpu.name:
            notes.append(f"planned on {gpu.name}, as {asked.resource} says")
        cluster = replace(cluster, gpu=Gpu(name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch))
    if any(request.shared for request in requests) and (cluster.gpu_fraction, cluster.gpu_memory) == (1.0, 0):
        notes.append(
            "others use its GPUs too, and it is planned as if alone: cluster.gpu_fraction or cluster.gpu_memory says"
            " what it may have, cluster.held_by_others_bytes what they hold"
        )
    return replace(job, cluster=cluster), notes

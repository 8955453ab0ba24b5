"""Reads what a pod, or a Slurm job, asks for of GPUs: how many, which, and which part of each.

Parts are MIG slices (`nvidia.com/mig-1g.10gb`, a DRA claim, a gres), fractions and sizes (KAI's annotations, HAMi's and
Volcano's resources, the limit of CUDA's Multi-Process Service), or an unsaid share of a GPU that takes turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.admission.kubernetes_api import MOST, number, part, parts, text_of
from planner.hardware import catalog, mig
from planner.hardware.gpus import GpuRecord
from planner.job import named_gpus
from planner.job.schema import Gpu, Job
from planner.units import GIB, KIB, MIB, TIB, show_bytes

GPU, AMD_GPU = "nvidia.com/gpu", "amd.com/gpu"
_SHARED = ".shared"
"""Behind a resource of which several containers take turns (NVIDIA/k8s-device-plugin, sharing.timeSlicing and
sharing.mps with renameByDefault), and in capitals behind such a node's product label."""
_MIG = "nvidia.com/mig-"
_HAMI_MEMORY, _HAMI_PERCENTAGE = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
"""MiB, and hundredths, of each GPU: Project-HAMi/HAMi@4707fb0, charts/hami/values.yaml. 0 is unsaid."""
_VOLCANO_NUMBER, _VOLCANO_MEMORY, _VOLCANO_PERCENTAGE = (
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
)
"""Volcano's plugin of HAMi: Project-HAMi/volcano-vgpu-device-plugin, README."""
_KAI_FRACTION, _KAI_MEMORY, _KAI_CONTAINER, _KAI_DEVICES = (
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-container-name",
    "gpu-fraction-num-devices",
)
"""Annotations of a pod: kai-scheduler/KAI-Scheduler@d5bc503, pkg/common/constants/constants.go. Of the first container
where none is named; memory in MiB. KAI counts them, and does not enforce them."""
_MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""`0=4G,1=512M`, in G or M: what a client of MPS may have of a GPU, with what CUDA itself takes (NVIDIA's MPS guide,
appendix of environment variables)."""
_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kKMGT]i?)?")
_UNITS = {"": 1, "K": 10**3, "KI": KIB, "M": 10**6, "MI": MIB, "G": 10**9, "GI": GIB, "T": 10**12, "TI": TIB}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """`count` equal GPUs, or parts of so many, that one container asks for."""

    container: str = ""
    resource: str = GPU
    """As the API calls it; of a DRA claim its device class."""
    count: int
    product: str = ""
    """Which GPU, as far as it is said: a label's value, a name, words of one."""
    profile: str = ""
    fraction: float = 1.0
    """Of each GPU's memory."""
    memory_bytes: int = 0
    """Of each GPU; 0: no such limit."""
    shared: bool = False
    """Others use the GPU too, and nothing says how much of it is theirs."""

    @property
    def is_part(self) -> bool:
        return bool(self.profile or self.fraction < 1 or self.memory_bytes or self.shared)

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


FindClaim = Callable[[str, str], Mapping[str, Any]]
"""The spec of a DRA claim, by `ResourceClaim` or `ResourceClaimTemplate` and its name; empty where it is not known."""


def no_claim(_kind: str, _name: str) -> Mapping[str, Any]:
    return {}


def read_gpu_requests(
    pod: Mapping[str, Any], annotations: Mapping[str, Any], find_claim: FindClaim = no_claim
) -> tuple[GpuRequest, ...]:
    """What each container of a pod's `spec` asks for, in their order; none where it asks for no GPU.

    `annotations` are the pod's (`template.metadata.annotations`). What is not as the API has it asks for nothing.
    """
    product = text_of(part(pod, "nodeSelector").get(catalog.PRODUCT_LABEL))
    claims = {text_of(claim.get("name")): _find_claim(claim, find_claim) for claim in parts(pod, "resourceClaims")}
    containers = parts(pod, "containers")
    requests: list[GpuRequest] = []
    for place, container in enumerate(containers):
        found = [*_of_resources(container), *_of_claims(container, claims), *_of_kai(container, place, annotations)]
        limit = _mps_limit(container)
        for request in found:
            shared = request.shared or product.endswith(_SHARED.replace(".", "-").upper())
            request = replace(
                request, container=text_of(container.get("name")), product=request.product or product, shared=shared
            )
            if limit:
                request = replace(request, memory_bytes=min(request.memory_bytes or limit, limit))
            if request.fraction < 1 or request.memory_bytes:
                request = replace(request, shared=False)
            requests.append(request)
    return tuple(requests)


def _of_resources(container: Mapping[str, Any]) -> Iterator[GpuRequest]:
    """Limits first: of what cannot be shared, requests are equal to them."""
    resources = part(container, "resources")
    asked = {**part(resources, "requests"), **part(resources, "limits")}
    for name, value in asked.items():
        whole = str(name).removesuffix(_SHARED)
        shared = whole != name
        if whole.startswith(_MIG):
            request = GpuRequest(resource=name, count=number(value), profile=mig.profile_in(whole), shared=shared)
        elif whole in (GPU, _VOLCANO_NUMBER):
            memory, percentage = (
                (_HAMI_MEMORY, _HAMI_PERCENTAGE) if whole == GPU else (_VOLCANO_MEMORY, _VOLCANO_PERCENTAGE)
            )
            hundredths = number(asked.get(percentage)) or 100
            request = GpuRequest(
                resource=name,
                count=number(value),
                fraction=min(hundredths, 100) / 100,
                memory_bytes=number(asked.get(memory)) * MIB,
                shared=shared,
            )
        elif whole == AMD_GPU:
            request = GpuRequest(resource=name, count=number(value), shared=shared)
        else:
            continue
        if request.count:
            yield request


def _of_kai(container: Mapping[str, Any], place: int, annotations: Mapping[str, Any]) -> Iterator[GpuRequest]:
    fraction, memory = text_of(annotations.get(_KAI_FRACTION)), number(annotations.get(_KAI_MEMORY))
    named = text_of(annotations.get(_KAI_CONTAINER))
    if (named != container.get("name")) if named else place:
        return
    share = float(fraction) if re.fullmatch(r"[0-9]{0,3}(\.[0-9]{1,6})?", fraction) and fraction not in ("", ".") else 0
    if 0 < share <= 1 or memory:
        count = number(annotations.get(_KAI_DEVICES)) or 1
        yield GpuRequest(count=count, fraction=share if 0 < share <= 1 else 1.0, memory_bytes=memory * MIB)


def _mps_limit(container: Mapping[str, Any]) -> int:
    """Of the GPU that may be used least; 0 without a limit."""
    for variable in parts(container, "env"):
        if variable.get("name") == _MPS_LIMIT:
            sizes = [_bytes(word.rpartition("=")[2], binary=True) for word in text_of(variable.get("value")).split(",")]
            return min((size for size in sizes if size), default=0)
    return 0


def _find_claim(claim: Mapping[str, Any], find_claim: FindClaim) -> Mapping[str, Any]:
    """The `devices` of a claim, whichever way the pod names it."""
    if name := text_of(claim.get("resourceClaimName")):
        return part(find_claim("ResourceClaim", name), "devices")
    if name := text_of(claim.get("resourceClaimTemplateName")):
        template = find_claim("ResourceClaimTemplate", name)
        return part(template, "spec", "devices") or part(template, "devices")
    return {}


_DEVICE_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
_ATTRIBUTE = r"{}\s*==\s*['\"]([^'\"]{{1,80}})['\"]"


def _of_claims(container: Mapping[str, Any], claims: Mapping[str, Mapping[str, Any]]) -> Iterator[GpuRequest]:
    """resource.k8s.io v1 and v1beta2 (`exactly`) and v1beta1, with the attributes and the configuration of NVIDIA's
    driver (NVIDIA/k8s-dra-driver-gpu, demo/specs)."""
    for used in parts(container, "resources", "claims"):
        devices, only = claims.get(text_of(used.get("name")), {}), text_of(used.get("request"))
        for asked in parts(devices, "requests"):
            name = text_of(asked.get("name"))
            exact = part(asked, "exactly") or next(iter(parts(asked, "firstAvailable")), asked)
            kind = text_of(exact.get("deviceClassName"))
            if kind not in _DEVICE_CLASSES or (only and only.partition("/")[0] != name):
                continue
            selectors = " ".join(
                text_of(part(selector, "cel").get("expression")) for selector in parts(exact, "selectors")
            )
            product, profile = (
                re.search(_ATTRIBUTE.format(attribute), selectors) for attribute in ("productName", "profile")
            )
            capacity = part(exact, "capacity", "requests").get("memory")
            yield GpuRequest(
                resource=kind,
                count=number(exact.get("count"), 1),
                product=product[1] if product else "",
                profile=mig.profile_in(profile[1]) if profile else "",
                memory_bytes=_bytes(capacity) or _limit_of_config(devices, name),
            )


def _limit_of_config(devices: Mapping[str, Any], request: str) -> int:
    """Of MPS, as NVIDIA's driver is told for a request."""
    for config in parts(devices, "config"):
        named = config.get("requests")
        if isinstance(named, list) and named and request not in named:
            continue
        sharing = part(config, "opaque", "parameters", "sharing")
        if limit := _bytes(part(sharing, "mpsConfig").get("defaultPinnedDeviceMemoryLimit")):
            return limit
    return 0


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

    def room(request: GpuRequest) -> tuple[int, float]:
        gpu = request.gpu()
        return request.memory_bytes or (gpu.total_bytes if gpu is not None else 1 << 62), request.fraction

    return min(requests, key=room, default=None)


def plan_part(job: Job, requests: Sequence[GpuRequest]) -> tuple[Job, list[str]]:
    """The job on the part of a GPU that is asked for, and what its owner should know about that. Raises SpecError for
    several ranks on MIG slices."""
    asked, cluster = combine(requests), job.cluster
    if asked is None or not asked.is_part:
        return job, []
    gpu, notes, share = asked.gpu(cluster.gpu.name), [], ""
    if asked.profile and gpu is None:
        of = asked.product or cluster.gpu.name or "the GPU of the spec"
        notes.append(f"{of} has no MIG slice {asked.profile} that planner knows: planned as the spec says")
    elif gpu is not None and gpu.slice:
        named_gpus.refuse_ranks_on_slice(gpu.name, cluster.nodes * cluster.gpus_per_node, asked.resource)
        if gpu.name != cluster.gpu.name:
            notes.append(f"planned on {gpu.name}, as {asked.resource} says")
        cluster = replace(cluster, gpu=Gpu(name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch))
    if asked.fraction < 1:
        cluster, share = replace(cluster, gpu_fraction=asked.fraction), f"{asked.fraction:g} of each GPU"
    if asked.memory_bytes:
        cluster, share = (
            replace(cluster, gpu_memory=asked.memory_bytes),
            f"{show_bytes(asked.memory_bytes)} of each GPU",
        )
    if share:
        notes.append(f"planned for {share}, as its containers ask")
    if asked.shared:
        notes.append(
            f"{asked.resource} is used in turns: what others hold of the GPU is not known, and it is planned as if"
            " alone (cluster.held_by_others_bytes says what they hold)"
        )
    return replace(job, cluster=cluster), notes


def _bytes(value: Any, *, binary: bool = False) -> int:
    """A quantity of memory: `10Gi`, `10G`, `1024`; 0 for anything else. `binary`: G and M are powers of two."""
    match = _QUANTITY.fullmatch(str(value).strip()) if isinstance(value, int | str) else None
    if match is None:
        return 0
    unit = (match[2] or "").upper()
    return int(float(match[1]) * _UNITS[f"{unit}I" if binary and len(unit) == 1 else unit])

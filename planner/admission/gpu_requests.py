"""Reads what a pod asks for of GPUs: how many, which, and which part of each.

Parts are MIG slices (`nvidia.com/mig-1g.10gb`, a DRA claim), fractions and sizes (KAI's annotations, HAMi's and
Volcano's resources, the limit of CUDA's Multi-Process Service), or an unsaid share of a GPU that takes turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from planner.admission.kubernetes_api import items, number, part, parts, text_of
from planner.errors import SpecError
from planner.hardware import catalog, mig
from planner.hardware.gpu_records import GpuRecord
from planner.job import named_gpus
from planner.job.schema import Gpu, Job
from planner.units import GIB, KIB, MIB, TIB, show_bytes

GPU, AMD_GPU = "nvidia.com/gpu", "amd.com/gpu"
_SHARED = ".shared"
"""Behind a resource of which several containers take turns (NVIDIA/k8s-device-plugin, sharing.timeSlicing and
sharing.mps with renameByDefault), and in capitals behind such a node's product label."""
_MIG = "nvidia.com/mig-"
_AMD_PARTITION = re.compile(r"(amd[.]com/)?([a-z]px)_nps[0-9]{1,2}")
"""`amd.com/cpx_nps4`, or the node's label where partitions are amd.com/gpu (ROCm/k8s-device-plugin, mixed and single
resource_naming_strategy)."""
_AMD_PARTITIONS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
"""Into how many a GPU is partitioned; each has its share of the memory, however that is partitioned (Linux 6.9,
drivers/gpu/drm/amd/amdgpu/amdgpu_amdkfd.c, amdgpu_amdkfd_xcp_memory_size). cpx makes six of an MI300A: more each."""
_AMD_PRODUCT_LABEL, _AMD_PARTITION_LABEL = "amd.com/gpu.product-name", "amd.com/compute-memory-partition"
"""Of ROCm's node labeller."""
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
MODEL = (
    r"((geforce|quadro|tesla|titan|gtx|rtx)[a-z0-9]*"
    r"|(a|b|gb|gh|h|k|l|m|mi|p|t|v)[0-9]{2,4}[a-z]*|a2|l4|p4|t4|[1-5]0[5-9]0(ti)?)"
)
"""A word of a resource that is called by its product: `nvidia.com/a100`, `rtxa6000` (NRP, GPU pods: requesting special
GPUs), `gpu-v100` (kubernetes-sigs/kueue, resource transformations), `v100-sxm2-16gb` (Volcano), `amd.com/mi300x`."""
_PRODUCT = re.compile(
    rf"(nvidia|amd)[.]com/((gpu|[a-z]{{2}}[0-9]{{3}}(gl)?)[-._])?(?P<product>(.*[-._])?{MODEL}([-._].*)?)"
)
"""The chip's name in front is that of PCI's list: `nvidia.com/TU104GL_Tesla_T4` (NVIDIA/kubevirt-gpu-device-plugin)."""
_VGPU = re.compile(r"(?:grid[-_])?(.*?)[-_](?:[0-9][-_])?([0-9]{1,3})[qbca]")
"""`GRID_T4-2Q`, `NVIDIA_A10-24Q`, `GRID_A100-1-10C`: so many GB of one (NVIDIA's vGPU user guide, its types)."""
MOST_CONTAINERS, MOST_CLAIMS, _MOST_REQUESTS = 1_000, 64, 4_096
"""Of one job: so many are read in hundredths of a second, and no training has more."""
_MOST_IN_CLAIM, _LONGEST_EXPRESSION = 32, 10 * 1024
"""Requests of a claim, selectors of a request, characters of one (kubernetes/api, resource/v1/types.go)."""
_MOST_PRODUCTS, _LONGEST = 16, 120
"""Of one job, of which something is said; characters of a name."""
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
        meant = gpus_meant(named)
        known = next((gpu for gpu in meant if gpu.usual), next(iter(meant), None))
        if known is None or not self.profile:
            return known
        return catalog.slice_of(known, self.profile)


@lru_cache(512)
def gpus_meant(product: str) -> tuple[GpuRecord, ...]:
    """The GPUs of the catalog that a node's label, or a name as people write it, may mean."""
    known = catalog.by_node_label(product) or catalog.by_name(product)
    return (known,) if known is not None else tuple(catalog.by_any_name(product[:100]))


@lru_cache(512)
def product_in(resource: str) -> str:
    """The product by which a resource is called; empty for any other resource."""
    found = _PRODUCT.fullmatch(resource[:200].lower())
    return found["product"] if found else ""


FindClaim = Callable[[str, str], Mapping[str, Any]]
"""The spec of a DRA claim, by `ResourceClaim` or `ResourceClaimTemplate` and its name; empty where it is not known."""


def no_claim(_kind: str, _name: str) -> Mapping[str, Any]:
    return {}


def read_gpu_requests(
    pod: Mapping[str, Any], annotations: Mapping[str, Any], find_claim: FindClaim = no_claim
) -> tuple[GpuRequest, ...]:
    """What each container of a pod's `spec` asks for, in their order; none where it asks for no GPU.

    `annotations` are the pod's (`template.metadata.annotations`). What is not as the API has it asks for nothing.
    Raises SpecError for more than any training has.
    """
    product = _label_of_nodes(pod, catalog.PRODUCT_LABEL) or _label_of_nodes(pod, _AMD_PRODUCT_LABEL)
    partition = _label_of_nodes(pod, _AMD_PARTITION_LABEL)
    containers, claimed = parts(pod, "containers"), parts(pod, "resourceClaims")
    refuse_more("containers", len(containers), MOST_CONTAINERS)
    refuse_more("claims of devices", len(claimed), MOST_CLAIMS)
    claims = {text_of(claim.get("name")): tuple(_of_devices(_find_claim(claim, find_claim))) for claim in claimed}
    requests: list[GpuRequest] = []
    for place, container in enumerate(containers):
        found = [*_of_resources(container), *_of_claims(container, claims), *_of_kai(container, place, annotations)]
        limit = _mps_limit(container)
        for request in found:
            shared = request.shared or product.endswith(_SHARED.replace(".", "-").upper())
            # The label of the nodes says more than a resource: `a100` is one of four.
            of = product if request.resource.partition("/")[2] and product else request.product or product
            request = replace(request, container=text_of(container.get("name")), product=of, shared=shared)
            if request.resource == AMD_GPU:
                request = replace(request, fraction=_amd_share(partition) or 1.0)
            if limit:
                request = replace(request, memory_bytes=min(request.memory_bytes or limit, limit))
            if request.fraction < 1 or request.memory_bytes:
                request = replace(request, shared=False)
            requests.append(request)
        refuse_more("requests for GPUs", len(requests), _MOST_REQUESTS)
    return tuple(requests)


def refuse_more(what: str, count: int, most: int) -> None:
    """Raises SpecError for more than `most`: what one job asks for must not keep others waiting."""
    if count > most:
        raise SpecError(f"the job has {count:,} {what}", allowed=f"at most {most:,}")


def _label_of_nodes(pod: Mapping[str, Any], label: str) -> str:
    """A label of the nodes that the pod may be on; empty where they may have different ones."""
    if selected := text_of(part(pod, "nodeSelector").get(label)):
        return selected
    affinity = part(pod, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    products: set[str] = set()
    for term in parts(affinity, "nodeSelectorTerms"):  # one of them has to hold
        named = [
            text_of(value)
            for each in parts(term, "matchExpressions")
            if (each.get("key"), each.get("operator")) == (label, "In")
            for value in items(each.get("values"))
        ]
        products.update(named or [""])
    return products.pop() if len(products) == 1 else ""


def _amd_share(partition: str) -> float:
    """Of a GPU's memory; 0 for what does not say a known partition."""
    found = _AMD_PARTITION.fullmatch(partition[:_LONGEST].lower())
    parts_of_gpu = _AMD_PARTITIONS.get(found[2]) if found else None
    return 1 / parts_of_gpu if parts_of_gpu else 0.0


def _of_resources(container: Mapping[str, Any]) -> Iterator[GpuRequest]:
    """Limits first: of what cannot be shared, requests are equal to them."""
    resources = part(container, "resources")
    asked = {**part(resources, "requests"), **part(resources, "limits")}
    for name, value in asked.items():
        whole = str(name).removesuffix(_SHARED)
        request = GpuRequest(resource=name, count=number(value), product=product_in(whole), shared=whole != name)
        if not request.count:
            continue
        if whole.startswith(_MIG):
            yield replace(request, product="", profile=mig.profile_in(whole))
        elif virtual := _VGPU.fullmatch(request.product):
            yield replace(request, product=virtual[1], memory_bytes=int(virtual[2]) * GIB)
        elif share := 1.0 if whole == AMD_GPU else _amd_share(whole):
            yield replace(request, fraction=share)
        elif request.product or whole in (GPU, _VOLCANO_NUMBER):
            is_volcano = whole == _VOLCANO_NUMBER
            memory = number(asked.get(_VOLCANO_MEMORY if is_volcano else _HAMI_MEMORY)) * MIB
            hundredths = number(asked.get(_VOLCANO_PERCENTAGE if is_volcano else _HAMI_PERCENTAGE)) or 100
            yield replace(request, fraction=min(hundredths, 100) / 100, memory_bytes=memory)


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


def _of_claims(
    container: Mapping[str, Any], claims: Mapping[str, Sequence[tuple[str, GpuRequest]]]
) -> Iterator[GpuRequest]:
    used = (
        (text_of(each.get("name")), text_of(each.get("request"))) for each in parts(container, "resources", "claims")
    )
    for claim, only in dict.fromkeys(used):
        for name, request in claims.get(claim, ()):
            if not only or only.partition("/")[0] == name:
                yield request


def _of_devices(devices: Mapping[str, Any]) -> Iterator[tuple[str, GpuRequest]]:
    """The requests of a claim by their names: resource.k8s.io v1 and v1beta2 (`exactly`) and v1beta1, with the
    attributes and the configuration of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu, demo/specs)."""
    for asked in parts(devices, "requests")[:_MOST_IN_CLAIM]:
        name = text_of(asked.get("name"))
        exact = part(asked, "exactly") or next(iter(parts(asked, "firstAvailable")), asked)
        kind = text_of(exact.get("deviceClassName"))
        if kind not in _DEVICE_CLASSES:
            continue
        selectors = " ".join(
            text_of(part(selector, "cel").get("expression"))[:_LONGEST_EXPRESSION]
            for selector in parts(exact, "selectors")[:_MOST_IN_CLAIM]
        )
        product, profile, partition = (
            re.search(_ATTRIBUTE.format(attribute), selectors)
            for attribute in ("productName", "profile", "computePartition")
        )
        capacity = part(exact, "capacity", "requests").get("memory")
        yield (
            name,
            GpuRequest(
                resource=kind,
                count=number(exact.get("count"), 1),
                product=product[1] if product else "",
                profile=mig.profile_in(profile[1]) if profile else "",
                fraction=1 / _AMD_PARTITIONS.get(partition[1].lower(), 1) if partition else 1.0,
                memory_bytes=_bytes(capacity) or _limit_of_config(devices, name),
            ),
        )


def _limit_of_config(devices: Mapping[str, Any], request: str) -> int:
    """Of MPS, as NVIDIA's driver is told for a request."""
    for config in parts(devices, "config")[:_MOST_IN_CLAIM]:
        named = config.get("requests")
        if isinstance(named, list) and named and request not in named:
            continue
        sharing = part(config, "opaque", "parameters", "sharing")
        if limit := _bytes(part(sharing, "mpsConfig").get("defaultPinnedDeviceMemoryLimit")):
            return limit
    return 0


def combine(requests: Sequence[GpuRequest]) -> GpuRequest | None:
    """The part of a GPU that a job has to fit: where containers ask for different ones, the smallest; None without a
    request."""

    def room(request: GpuRequest) -> tuple[int, float]:
        gpu = request.gpu()
        return request.memory_bytes or (gpu.total_bytes if gpu is not None else 1 << 62), request.fraction

    return min(requests, key=room, default=None)


def other_gpus(products: Sequence[str], job: Job, go: str) -> list[str]:
    """A sentence for each product (a node's label, a name) that the GPU of the spec is not: `go` it."""
    planned, sentences = job.cluster.gpu.name, []
    for product in products[:_MOST_PRODUCTS]:
        meant = gpus_meant(product)
        if planned and meant and planned.partition(":")[0] not in {gpu.whole or gpu.name for gpu in meant}:
            called = meant[0].name if len(meant) == 1 else meant[0].model
            named = product if product == called else f"{product[:_LONGEST]} ({called})"
            sentences.append(f"{go} {named}, and the spec plans {planned}")
    return sentences


def count_gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"


def plan_part(job: Job, requests: Sequence[GpuRequest]) -> tuple[Job, list[str]]:
    """The job on the part of a GPU that is asked for, and what its owner should know about that. Raises SpecError for
    several ranks on MIG slices."""
    asked, cluster = combine(requests), job.cluster
    if asked is None:
        return job, []
    if not asked.is_part:
        unsaid = f"{asked.resource} does not say which slice it is: planned as the spec says"
        return job, [unsaid] if asked.resource.startswith(_MIG) else []
    gpu, notes, share = asked.gpu(cluster.gpu.name), [], ""
    if asked.profile and gpu is None:
        of = asked.product or cluster.gpu.name or "the GPU of the spec"
        notes.append(f"{of} has no MIG slice {asked.profile} that planner knows: planned as the spec says")
    elif gpu is not None and gpu.slice:
        named_gpus.refuse_ranks_on_slice(gpu.name, cluster.ranks, asked.resource)
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

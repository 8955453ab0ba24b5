"""Places the ranks of a validation on a Ray cluster's GPUs, before anything is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import PlannerError
from planner.hardware import catalog
from planner.job.schema import Gpu

LABEL = "ray.io/accelerator-type"
RESOURCE = "accelerator_type:"
"""Ray gives a node with a GPU both, if it knows the GPU; people give what they like (Ray 2.60, node labels and
_private/accelerators)."""
_A_TRACE_OF = 0.001
CPUS_PER_RANK = 0.25
"""What a measured step on a CPU takes of Ray's CPUs: the replicas of the service have their part of a small machine."""


class RefusedError(PlannerError):
    """This cluster cannot run the validation now or later; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node that is alive, with all that it has, used or not; `kind` is Ray's accelerator type or empty."""

    name: str
    cpus: int = 0
    gpus: int = 0
    kind: str = ""
    labelled: bool = False
    """Whether the kind is a label; else it is a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What Ray is asked for: one bundle for each process, with the labels that its node must have."""

    bundles: tuple[Mapping[str, float], ...]
    strategy: str
    labels: Mapping[str, str] = field(default_factory=dict)


def nodes_of(described: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The nodes that are alive, from what `ray.nodes()` says."""
    return tuple(_node(each) for each in described if each.get("Alive", each.get("alive")))


def format_nodes(nodes: Sequence[Node]) -> str:
    """What GPUs there are, for people."""
    counted: Counter[str] = Counter()
    for node in nodes:
        if node.gpus:
            counted[node.kind or "a kind that Ray does not know"] += node.gpus
    if not counted:
        return (
            f"no GPU on {_format_count(len(nodes), 'node')}, {_format_count(sum(each.cpus for each in nodes), 'CPU')}"
        )
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counted.items()))


def suiting(nodes: Sequence[Node], gpu: Gpu) -> tuple[Node, ...]:
    """The nodes whose GPUs may be the job's: an accelerator type such as A100 leaves open which A100 it is."""
    return tuple(node for node in nodes if node.gpus and node.kind and _may_be(node.kind, gpu))


def place_on_gpus(nodes: Sequence[Node], gpu: Gpu, processes: int) -> Place:
    """Where so many processes find a GPU of the job's kind each. Raises RefusedError if there never are so many."""
    there = suiting(nodes, gpu)
    if not there:
        raise RefusedError(
            f"no node of this cluster has a GPU of the job's kind, {_describe_gpu(gpu)}",
            allowed=f"what is there: {format_nodes(nodes)}",
            remedy="validate on a cluster that has one, or say device cpu: that validates the structure only",
        )
    if sum(node.gpus for node in there) < processes:
        raise RefusedError(
            f"{_format_count(processes, 'GPU')} of the kind {_describe_gpu(gpu)} are wanted at once",
            allowed=f"what is there: {format_nodes(nodes)}",
            remedy="say mode absent_peers: one GPU is enough for it",
        )
    labelled = [node for node in there if node.labelled]
    by_label = sum(node.gpus for node in labelled) >= processes
    chosen = labelled if by_label else [node for node in there if not node.labelled] or list(there)
    kinds = sorted({node.kind for node in chosen})
    bundle = {"GPU": 1.0} if by_label else {"GPU": 1.0, f"{RESOURCE}{kinds[0]}": _A_TRACE_OF}
    labels = {LABEL: kinds[0] if len(kinds) == 1 else f"in({','.join(kinds)})"} if by_label else {}
    together = any(node.gpus >= processes for node in chosen)
    return Place(bundles=(bundle,) * processes, strategy="STRICT_PACK" if together else "PACK", labels=labels)


def place_on_cpus(nodes: Sequence[Node], processes: int) -> Place:
    """Where so many processes find a CPU each. Raises RefusedError if there never are so many."""
    cpus = sum(node.cpus for node in nodes)
    if cpus < processes:
        raise RefusedError(
            f"{_format_count(processes, 'CPU')} are wanted at once",
            allowed=f"what is there: {_format_count(cpus, 'CPU')} on {_format_count(len(nodes), 'node')}",
            remedy="say mode absent_peers: one CPU is enough for it",
        )
    together = any(node.cpus >= processes for node in nodes)
    return Place(bundles=({"CPU": CPUS_PER_RANK},) * processes, strategy="STRICT_PACK" if together else "PACK")


def _node(described: Mapping[str, Any]) -> Node:
    resources = described.get("Resources") or {}
    label = (described.get("Labels") or {}).get(LABEL, "")
    named = [name.removeprefix(RESOURCE) for name in resources if name.startswith(RESOURCE)]
    return Node(
        name=str(described.get("NodeManagerAddress", "")),
        cpus=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        kind=label or next(iter(sorted(named)), ""),
        labelled=bool(label),
    )


def _may_be(kind: str, gpu: Gpu) -> bool:
    known = catalog.by_alias(kind) or [each for each in catalog.gpus().values() if each.name == kind]
    return any(each.name == gpu.name if gpu.name else each.arch == gpu.arch for each in known)


def _describe_gpu(gpu: Gpu) -> str:
    if not gpu.name:
        return f"any of {gpu.arch}"
    known = catalog.by_name(gpu.name)
    aliases = known.aliases if known else ()
    return f"{gpu.name} (in Ray: {', '.join(aliases) or 'unknown'})"


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

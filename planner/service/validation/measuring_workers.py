"""Places ranks on a Ray cluster's GPUs, and runs one measuring process at a time on each of them."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from planner.errors import MeasureError, PlannerError
from planner.hardware import catalog
from planner.hardware.gpu_records import GpuRecord
from planner.job.schema import Gpu
from planner.runtime.limits import Limits
from planner.runtime.walls import Walls

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


def read_nodes(described: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    nodes = []
    for node in described:
        if node.get("Alive", node.get("alive")):
            resources, label = node.get("Resources") or {}, (node.get("Labels") or {}).get(LABEL, "")
            kinds = sorted(name.removeprefix(RESOURCE) for name in resources if name.startswith(RESOURCE))
            nodes.append(
                Node(
                    name=str(node.get("NodeManagerAddress", "")),
                    cpus=int(resources.get("CPU", 0)),
                    gpus=int(resources.get("GPU", 0)),
                    kind=label or next(iter(kinds), ""),
                    labelled=bool(label),
                )
            )
    return tuple(nodes)


def format_nodes(nodes: Sequence[Node]) -> str:
    counted: Counter[str] = Counter()
    for node in nodes:
        if node.gpus:
            counted[node.kind or "a kind that Ray does not know"] += node.gpus
    if not counted:
        cpus = sum(node.cpus for node in nodes)
        return f"no GPU on {_format_count(len(nodes), 'node')}, {_format_count(cpus, 'CPU')}"
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counted.items()))


def suiting(nodes: Sequence[Node], gpu: Gpu) -> tuple[Node, ...]:
    """The nodes whose GPUs may be the job's: an accelerator type such as A100 leaves open which A100 it is."""

    def may_be(kind: str) -> bool:
        known = catalog.by_alias(kind) or [known for known in catalog.gpus().values() if known.name == kind]
        return any(_is_kind(record, gpu) for record in known)

    return tuple(node for node in nodes if node.gpus and node.kind and may_be(node.kind))


def find_kind(gpu: Gpu) -> str:
    """What Ray calls the job's GPU, for one without a name any of its architecture; empty where it knows none."""
    known = (record for record in catalog.gpus().values() if _is_kind(record, gpu))
    return next((alias for record in known for alias in record.aliases), "")


def _is_kind(record: GpuRecord, gpu: Gpu) -> bool:
    return record.name == gpu.name if gpu.name else record.arch == gpu.arch


def place_on_gpus(nodes: Sequence[Node], gpu: Gpu, processes: int) -> Place:
    """Where so many processes find a GPU of the job's kind each. Raises RefusedError if there never are so many."""
    there = suiting(nodes, gpu)
    known = catalog.by_name(gpu.name) if gpu.name else None
    aliases = ", ".join(known.aliases if known else ()) or "unknown"
    described = f"{gpu.name} (in Ray: {aliases})" if gpu.name else f"any of {gpu.arch}"
    if not there:
        raise RefusedError(
            f"no node of this cluster has a GPU of the job's kind, {described}",
            allowed=f"what is there: {format_nodes(nodes)}",
            remedy="validate on a cluster that has one, or say device cpu: that validates the structure only",
        )
    if sum(node.gpus for node in there) < processes:
        raise RefusedError(
            f"{_format_count(processes, 'GPU')} of the kind {described} are wanted at once",
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


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_LOOK_SECONDS = 0.25
_START_SECONDS = 120.0
"""For a worker process to start once its place is there: a fresh runtime environment may have to come first."""
_PEERS_SECONDS = 10.0
"""How long peers may take after one of them has ended without success: they wait for it in a collective, in vain."""
_OVERHEAD_SECONDS = 60.0
"""Beyond the child's own limit, after which a worker that does not answer is given up."""

_GONE = {
    "problem": "the Ray worker that measured was lost (its process or its node ended)",
    "remedy": "ask again",
}


class StoppedError(Exception):
    """Whoever asked does not want the answer any more."""


class MeasuringWorker:
    """The actor: it starts the measuring process and waits for it, in its main thread."""

    def ready(self) -> tuple[str, int]:
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind(("", 0))
            return address, int(probe.getsockname()[1])

    def measure(self, request: Mapping[str, Any], limits: Limits, walls: Walls | None) -> dict[str, Any]:
        from planner.service.validation import measuring_process

        return measuring_process.run(request, limits, walls)


@contextmanager
def start_workers(place: Place, *, wait_seconds: float, stop: threading.Event) -> Iterator[list[Any]]:
    """One worker for each bundle of the place, all or none; ended afterwards, with whatever runs on them.

    Raises MeasureError if the place is not free within `wait_seconds`, StoppedError if `stop` is set meanwhile.
    """
    group = placement_group(
        [dict(bundle) for bundle in place.bundles],
        strategy=place.strategy,
        bundle_label_selector=[dict(place.labels)] * len(place.bundles) if place.labels else None,
    )
    workers: list[Any] = []
    try:
        _wait_for(group, len(place.bundles), wait_seconds, stop)
        for index, bundle in enumerate(place.bundles):
            options: dict[str, Any] = {
                "num_cpus": bundle.get("CPU", 0),
                "num_gpus": bundle.get("GPU", 0),
                "resources": {name: count for name, count in bundle.items() if name not in ("CPU", "GPU")} or None,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
                "max_restarts": 0,
            }
            workers.append(ray.remote(MeasuringWorker).options(**options).remote())
        yield workers
    finally:
        for worker in workers:
            with suppress(RayError):
                ray.kill(worker)
        with suppress(RayError):
            remove_placement_group(group)


def find_meeting_place(workers: Sequence[Any]) -> str:
    try:
        ready = ray.get([worker.ready.remote() for worker in workers], timeout=_START_SECONDS)
    except RayError as lost:
        lines = str(lost).strip().splitlines() or [type(lost).__name__]
        raise MeasureError(f"a Ray worker did not start: {lines[0][:300]}", remedy="ask again") from lost
    address, port = ready[0]
    return f"{address}:{port}"


def all_answers(
    tasks: Sequence[tuple[Any, Mapping[str, Any]]], limits: Limits, stop: threading.Event, walls: Walls | None = None
) -> dict[int, dict[str, Any]]:
    """What each worker answers to its request, by rank, all at a time.

    A lost worker is an answer too. Where one has a problem or ran out of memory, its peers are not waited for long.
    Raises StoppedError.
    """
    waiting = {worker.measure.remote(request, limits, walls): int(request["rank"]) for worker, request in tasks}
    answers: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + limits.seconds + _OVERHEAD_SECONDS
    while waiting and time.monotonic() < deadline:
        if stop.is_set():
            raise StoppedError
        ended, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_SECONDS)
        for reference in ended:
            rank = waiting.pop(reference)
            try:
                answers[rank] = dict(ray.get(reference))
            except RayError:
                answers[rank] = dict(_GONE)
            if _ended_early(answers[rank]):
                deadline = min(deadline, time.monotonic() + _PEERS_SECONDS)
    cause = next((rank for rank, answer in answers.items() if _ended_early(answer)), None)
    if cause is None:
        problem = f"a worker has not answered {_OVERHEAD_SECONDS:g} s after the limit of {limits.seconds:g} s"
    else:
        problem = f"it waited for rank {cause}, which had ended"
    return answers | {rank: {"problem": problem, "of_a_peer": cause is not None} for rank in waiting.values()}


def _ended_early(answer: Mapping[str, Any]) -> bool:
    return "problem" in answer or bool(answer["measurement"].get("out_of_memory"))


def _wait_for(group: PlacementGroup, processes: int, wait_seconds: float, stop: threading.Event) -> None:
    ready = group.ready()
    deadline = time.monotonic() + wait_seconds
    while not ray.wait([ready], timeout=_LOOK_SECONDS)[0]:
        if stop.is_set():
            raise StoppedError
        if time.monotonic() > deadline:
            what = "GPU" if "GPU" in group.bundle_specs[0] else "CPU"
            raise MeasureError(
                f"the cluster has what is wanted ({processes} x {what}), but for {wait_seconds:g} s it was busy",
                remedy="ask again when others have ended",
            )

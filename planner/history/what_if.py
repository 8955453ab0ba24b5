"""Computes which stored jobs would fit other GPUs, or more of them, from their plans and without tracing.

A plan holds for the GPU that it was made for. On another one kernels, workspaces and the CUDA context differ a little,
so what is said here is as good as the interval of the plan; planning the job for that GPU says it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.hardware.catalog import gpus
from planner.hardware.records import GpuRecord
from planner.history.needs import JobNeed
from planner.report.statement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOnGpu:
    """Jobs as they would be on one type of GPU: `judged` has each with its verdict there."""

    gpu: str
    total_bytes: int
    judged: tuple[tuple[JobNeed, Verdict], ...]

    def jobs(self, verdict: Verdict) -> int:
        """How many have this verdict."""
        return sum(found is verdict for _, found in self.judged)

    def gpus(self, verdict: Verdict) -> int:
        """How many GPUs these have."""
        return sum(need.ranks for need, found in self.judged if found is verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNeed:
    """GPUs that the waiting jobs of a queue need of one type; "" where none of those asked about is large enough."""

    queue: str
    gpu: str
    jobs: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNodes:
    """What new nodes would do for the jobs that wait."""

    gpu: str
    nodes: int
    gpus: int
    started_jobs: int
    started_gpus: int
    waiting_jobs: int
    """Those that would fit, and for which there are not enough."""
    waiting_gpus: int
    too_large_jobs: int
    """Those that do not fit this type of GPU."""

    @property
    def idle_gpus(self) -> int:
        return self.gpus - self.started_gpus


def verdict_on(need: JobNeed, gpu: GpuRecord) -> Verdict:
    """Of the fullest rank there. What others hold of the GPU it was planned for, they hold of this one too."""
    if gpu.name == need.gpu:
        return need.verdict
    planned = gpus().get(need.gpu)
    held = max(planned.total_bytes - need.capacity_bytes, 0) if planned else 0
    capacity = gpu.total_bytes - held
    if need.least_bytes > capacity:
        return Verdict.EXCEEDS
    return Verdict.FITS if max(need.device_bytes, need.highest_bytes) <= capacity else Verdict.TIGHT


def on_gpu(needs: Sequence[JobNeed], gpu: GpuRecord) -> JobsOnGpu:
    """All of the jobs, those that need most first."""
    ordered = sorted(needs, key=lambda need: (-need.least_bytes, need.system, need.job_id))
    return JobsOnGpu(
        gpu=gpu.name, total_bytes=gpu.total_bytes, judged=tuple((need, verdict_on(need, gpu)) for need in ordered)
    )


def queue_needs(needs: Sequence[JobNeed], candidates: Sequence[GpuRecord]) -> tuple[QueueNeed, ...]:
    """For each waiting job the smallest GPU on which it does not exceed; counted by queue and type."""
    by_size = sorted(candidates, key=lambda gpu: (gpu.total_bytes, gpu.name))
    counts: dict[tuple[str, str], list[int]] = {}
    for need in needs:
        if not need.waits:
            continue
        fitting = (gpu.name for gpu in by_size if verdict_on(need, gpu) is not Verdict.EXCEEDS)
        count = counts.setdefault((need.queue, next(fitting, "")), [0, 0])
        count[0] += 1
        count[1] += need.ranks
    return tuple(
        QueueNeed(queue=queue, gpu=gpu, jobs=jobs, gpus=ranks) for (queue, gpu), (jobs, ranks) in sorted(counts.items())
    )


def simulate_added_nodes(needs: Sequence[JobNeed], gpu: GpuRecord, nodes: int, gpus_per_node: int) -> AddedNodes:
    """The waiting jobs in their order, each started if there is room for it; later ones may pass one that has none.

    A job of more ranks than a node has GPUs takes whole nodes and, for what is left, a part of one.
    """
    free = [0] * gpus_per_node + [nodes]
    started, waiting, too_large = [], [], 0
    for need in needs:
        if not need.waits:
            continue
        if verdict_on(need, gpu) is Verdict.EXCEEDS:
            too_large += 1
        elif _place(free, need.ranks):
            started.append(need)
        else:
            waiting.append(need)
    return AddedNodes(
        gpu=gpu.name, nodes=nodes, gpus=nodes * gpus_per_node, started_jobs=len(started),
        started_gpus=sum(need.ranks for need in started), waiting_jobs=len(waiting),
        waiting_gpus=sum(need.ranks for need in waiting), too_large_jobs=too_large,
    )  # fmt: skip


def _place(free: list[int], ranks: int) -> bool:
    """Takes the GPUs, if there are enough. `free[n]` counts the nodes that have n GPUs left: nodes are all alike."""
    gpus_per_node = len(free) - 1
    whole, rest = divmod(ranks, gpus_per_node)
    if free[gpus_per_node] < whole:
        return False
    free[gpus_per_node] -= whole
    free[0] += whole
    if not rest:
        return True
    fullest = next((left for left in range(rest, gpus_per_node + 1) if free[left]), None)
    if fullest is None:
        free[gpus_per_node] += whole
        free[0] -= whole
        return False
    free[fullest] -= 1
    free[fullest - rest] += 1
    return True

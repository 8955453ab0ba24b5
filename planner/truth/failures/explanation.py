"""What is known of a failure, from a log, a snapshot or both, and beside the plan of its job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import PlannerError
from planner.events import Phase
from planner.job.rank_sets import RankSet
from planner.records import to_plain
from planner.report.statement import Plan, RankClassStatement
from planner.report.style import size
from planner.truth.failures.causes import CONTEXT_BYTES, Judgement, judge
from planner.truth.failures.gpu_messages import find_messages, innermost_own
from planner.truth.failures.host_messages import find_host_failures, other_reason
from planner.truth.failures.log_text import LogText
from planner.truth.failures.messages import Cause, Form, GpuFailure, HostFailure
from planner.truth.failures.rules import Lines
from planner.truth.failures.snapshot_failure import SnapshotFailure, explain_failures
from planner.truth.plan_comparison import class_of
from planner.units import MIB

_ALIKE = 0.01
"""Within which share two figures are taken to be the same: what a plan of an eager language model is off by at most."""
_SAME_GPU = 0.02
"""The total of one type of GPU differs by less between drivers (planner/hardware/gpus.toml)."""
_KNOWN_SIZES = 3
_TELLING_BYTES = MIB
"""Smaller allocations have sizes that many jobs have."""
_DTYPE_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parting:
    """One thing in which plan and failure differ; bytes are None where it is not a figure."""

    kind: str
    """another_job, other_gpu, other_world, other_process, outside_allocator, not_pytorch, phase, allocated,
    fragmentation, none"""
    planned_bytes: int | None
    found_bytes: int | None
    sentence: str


def _set_beside(
    plan: Plan, rank: int | None, message: tuple[GpuFailure, Judgement] | None, snapshot: SnapshotFailure | None
) -> tuple[Parting, ...]:
    """Where they part, the weightiest first; one of kind `none` where nothing that is known differs."""
    failure = message[0] if message else None
    failed = failure.rank if failure is not None and rank is None else rank
    world = sum(len(RankSet.parse(ranks.ranks)) for ranks in plan.rank_classes)
    partings: list[Parting] = []
    if failed is not None and failed >= world:
        sentence = f"rank {failed} failed, and the plan has {world} ranks: the job ran with another world size"
        partings.append(Parting("other_world", None, None, sentence))
        failed = None
    statement = class_of(plan, failed or 0)
    if snapshot is not None:
        partings += _of_another_job(statement, snapshot)
    if message is not None:
        partings += _of_the_device(statement, *message)
    if snapshot is not None:
        partings += [*_of_the_world(statement, snapshot), *_of_phases(statement, snapshot)]
    partings += _of_sums(statement, failure, snapshot)
    if not partings:
        sentence = f"nothing that is told differs from the plan, which says {statement.verdict.value}"
        partings.append(Parting("none", statement.peak.allocated_bytes, None, sentence))
    return tuple(partings)


def _of_another_job(statement: RankClassStatement, snapshot: SnapshotFailure) -> Iterator[Parting]:
    sizes = {
        math.prod(holder.shape) * _DTYPE_BYTES[holder.dtype]
        for holder in statement.holders
        if holder.shape and holder.dtype in _DTYPE_BYTES
    }
    telling = {held_bytes for held_bytes in sizes if held_bytes >= _TELLING_BYTES}
    if len(telling) >= _KNOWN_SIZES and not telling & snapshot.sizes:
        sentence = (
            f"none of the {len(telling)} largest sizes that the plan holds at its peak was ever asked for in the "
            "snapshot: it is of another job, or of another rank"
        )
        yield Parting("another_job", None, None, sentence)


def _of_the_device(statement: RankClassStatement, failure: GpuFailure, judged: Judgement) -> Iterator[Parting]:
    total, planned = failure.total_bytes, statement.capacity_bytes
    if total is not None and abs(total - planned) > _SAME_GPU * max(total, planned):
        sentence = f"planned for {size(planned)} of a GPU, and it ran on one of {size(total)}"
        yield Parting("other_gpu", planned, total, sentence)
    if others := judged.held.get("other_processes", 0):
        sentence = f"other processes held {size(others)} of the GPU, and the plan has it alone"
        yield Parting("other_process", 0, others, sentence)
    outside, expected = judged.held.get("outside_allocator"), statement.outside_allocator.total_bytes
    if outside is not None and outside > expected + max(CONTEXT_BYTES, expected // 10):
        sentence = (
            f"this process held {size(outside)} outside of PyTorch's allocator, and the plan has {size(expected)} "
            "there (CUDA context and NCCL)"
        )
        yield Parting("outside_allocator", expected, outside, sentence)
    unknown = judged.held.get("not_pytorch", judged.held.get("not_listed", 0))
    if unknown > expected + CONTEXT_BYTES:
        sentence = (
            f"{size(unknown)} of the GPU are neither free nor PyTorch's, and the plan has {size(expected)} outside of "
            "the allocator: another process, or more outside than was planned"
        )
        yield Parting("not_pytorch", expected, unknown, sentence)


def _of_the_world(statement: RankClassStatement, snapshot: SnapshotFailure) -> Iterator[Parting]:
    """A job that is sharded over fewer ranks holds a multiple of parameters and states before its forward."""
    held = snapshot.before_forward_bytes
    ends = [
        phase.end_allocated_bytes
        for phase in statement.phases
        if phase.phase in (Phase.LOAD, Phase.OPTIMIZER_STEP) and phase.end_allocated_bytes
    ]
    if not held or any(abs(held - end) <= 0.05 * end for end in ends):
        return
    for planned in ends:
        times = round(held / planned)
        if times >= 2 and abs(held - times * planned) <= 0.02 * held:
            sentence = (
                f"before its forward it held {times} times the {size(planned)} that are planned: as of a job that is "
                f"sharded over a {times}th of the ranks"
            )
            yield Parting("other_world", planned, held, sentence)
            return


def _of_phases(statement: RankClassStatement, snapshot: SnapshotFailure) -> Iterator[Parting]:
    peaks: dict[Phase, int] = {}
    for planned_phase in statement.phases:
        peaks[planned_phase.phase] = max(peaks.get(planned_phase.phase, 0), planned_phase.peak_allocated_bytes)
    for phase, most in snapshot.phase_peaks.items():
        planned = peaks.get(phase)
        wanted = most + (snapshot.size_bytes or 0 if phase is snapshot.phase else 0)
        if planned is not None and wanted > planned * (1 + _ALIKE):
            also = ", with the request that failed," if wanted != most else ""
            sentence = (
                f"{phase.value} is the first phase in which more was held than planned: {size(wanted)}{also} against "
                f"{size(planned)}"
            )
            yield Parting("phase", planned, wanted, sentence)
            return


def _of_sums(
    statement: RankClassStatement, failure: GpuFailure | None, snapshot: SnapshotFailure | None
) -> Iterator[Parting]:
    unallocated: int | None
    if snapshot is not None:
        allocated, tried = snapshot.state.allocated_bytes, snapshot.size_bytes
        unallocated = snapshot.state.reserved_bytes - allocated
    elif failure is not None and failure.allocated_bytes is not None:
        allocated, tried = failure.allocated_bytes - failure.private_pool_bytes, failure.tried_bytes
        unallocated = failure.unallocated_bytes
    else:
        return
    peak, wanted = statement.peak, allocated + (tried or 0)
    if wanted > peak.allocated_bytes * (1 + _ALIKE):
        sentence = (
            f"the job wanted {size(wanted)} in tensors, and its planned peak is {size(peak.allocated_bytes)} "
            f"({peak.phase.value} of iteration {peak.iteration}): it is not the job that was planned, or it holds what "
            "the plan does not know of (longer batches, retained outputs)"
        )
        yield Parting("allocated", peak.allocated_bytes, wanted, sentence)
    planned = max(peak.reserved_bytes - peak.allocated_bytes, 0)
    if unallocated is not None and unallocated > 2 * planned + statement.capacity_bytes // 20:
        sentence = (
            f"{size(unallocated)} were reserved and in no tensor, planned are {size(planned)}: many different sizes, "
            "or an order of allocations that the plan has not seen"
        )
        yield Parting("fragmentation", planned, unallocated, sentence)


SCHEMA = "planner.out_of_memory/1"
LOOKED_FOR = (
    "looked for: torch's out of memory messages (CUDA, HIP, XPU, NPU, MPS and others), those of the driver, NCCL, "
    "CUDA's "
    "libraries and other frameworks; kills by the kernel, Slurm, PBS, LSF, Grid Engine, HTCondor, Kubernetes, YARN and "
    "Ray; exit codes 137, -9, 135 and -7, SIGKILL, SIGBUS and the shell's `Killed`; "
    "allocations of the host that failed; or a snapshot"
)
_QUOTED = 200
_NEAR = (
    (
        Lines(r"out of resources?: (?:shared|tensor) memory"),
        "is of a multiprocessor's own memory, of which one kernel asks for too much: neither the GPU's nor the host's",
    ),
    (
        Lines(r"_OUT_OF_RESOURCES\b|too many resources requested for launch"),
        "says that something of the device ran out, which may be memory or another resource",
    ),
    (
        Lines(r"(?i)out[ -]of[ -]memory|\boom\b|memory (?:limit|exceeded)|not enough memory|\bkilled\b"),
        "speaks of it in words that are not known",
    ),
)
"""What a log speaks of that is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`partings` is empty where there was no plan to set it beside."""

    messages: tuple[tuple[GpuFailure, Judgement], ...]
    host: tuple[HostFailure, ...]
    snapshots: tuple[SnapshotFailure, ...]
    partings: tuple[Parting, ...] = ()
    plan_id: str = ""
    other_reason: str = ""
    """What the log itself gives as the reason of a kill, other than memory."""

    @property
    def cause(self) -> Cause:
        """Of what was said, the first whose cause is known, since the rest follows from it; else the snapshot's."""
        by_line = [(failure.line, judged.cause) for failure, judged in self.messages if not failure.caught]
        by_line += [(failure.line, failure.cause) for failure in self.host]
        causes = [cause for _, cause in sorted(by_line)] + [failure.cause for failure in self.snapshots]
        return next((cause for cause in causes if cause is not Cause.UNKNOWN), Cause.UNKNOWN)


def explain(
    text: str = "",
    snapshot: bytes | None = None,
    *,
    plan: Plan | None = None,
    rank: int | None = None,
    place: str = "the message",
) -> Explanation:
    """Explains what is in a text, in a snapshot, or in both of one failure.

    `rank` is the one that failed; None takes the message's, else rank 0. Raises PlannerError where neither tells of
    a failure, SnapshotError as replaying does.
    """
    log = LogText(text)
    messages = tuple((failure, judge(failure)) for failure in find_messages(log))
    host = tuple(find_host_failures(log))
    if not messages and not host and snapshot is None:
        raise PlannerError(
            f"nothing in it says that memory ran out{_nearest_words(log)}",
            allowed=LOOKED_FOR,
            remedy="give the whole log, with the lines above the last one",
            place=place,
        )
    figured = next((pair for pair in messages if pair[0].total_bytes is not None and not pair[0].caught), None)
    snapshots = () if snapshot is None else explain_failures(snapshot, place, figured[0] if figured else None)
    explained = Explanation(messages=messages, host=host, snapshots=snapshots, other_reason=other_reason(log))
    if plan is None:
        return explained
    partings = _set_beside(plan, rank, figured, snapshots[0] if snapshots else None)
    return replace(explained, partings=partings, plan_id=plan.plan_id)


def _nearest_words(log: LogText) -> str:
    """The last line that speaks of memory or of a kill in words that are not known."""
    for near, what in _NEAR:
        *_, match = [None, *near.find(log.written)]
        if match is not None:
            quoted = log.lines_of(match.start(), match.end(), _QUOTED)
            return f'; line {log.line_at(match.start())} {what}: "{quoted}"'
    return ""


def to_json(explanation: Explanation) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "cause": explanation.cause.value,
        "messages": [_message(*message) for message in explanation.messages],
        "host": [to_plain(failure) for failure in explanation.host],
        "snapshots": [to_plain(failure) for failure in explanation.snapshots],
        "plan_id": explanation.plan_id,
        "partings": [to_plain(parting) for parting in explanation.partings],
    }


def _message(failure: GpuFailure, judged: Judgement) -> dict[str, Any]:
    own = innermost_own(failure.frames)
    return {
        **to_plain(failure),
        "known": failure.form is not Form.UNKNOWN,
        "raised_at": None if own is None else to_plain(own),
        **to_plain(judged),
    }

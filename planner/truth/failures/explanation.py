"""What is known of a failure, from a log, a snapshot or both, and beside the plan of its job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError
from planner.events import Phase
from planner.job.rank_sets import RankSet
from planner.report.statement import PhaseStatement, RankClassStatement, fields_to_json
from planner.report.style import size
from planner.truth.failures.causes import CONTEXT_BYTES, Judgement, judge
from planner.truth.failures.messages import (
    Cause,
    Form,
    GpuFailure,
    HostFailure,
    find_host_failures,
    find_messages,
    innermost_own,
)
from planner.truth.failures.snapshot_failure import SnapshotFailure, explain_failures
from planner.truth.plan_comparison import Predicted, class_of
from planner.units import MIB

_ALIKE = 0.01
"""Within which share two figures are taken to be the same: what a plan of an eager language model is off by at most."""
_SAME_GPU = 0.02
"""The total of one type of GPU differs by less between drivers (planner/hardware/gpus.py)."""
_KNOWN_SIZES = 3
_TELLING_BYTES = MIB
"""Smaller allocations have sizes that many jobs have."""
_DTYPE_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """One thing in which plan and failure differ; bytes are None where it is no figure."""

    kind: str
    """another_job, other_gpu, other_world, other_process, outside_allocator, phase, allocated, fragmentation, none"""
    planned_bytes: int | None
    found_bytes: int | None
    sentence: str


def set_beside(
    plan: Predicted,
    rank: int | None,
    message: tuple[GpuFailure, Judgement] | None,
    snapshot: SnapshotFailure | None,
) -> tuple[Parting, ...]:
    """Where they part, the weightiest first; one of kind `none` where nothing that is known differs.

    `rank` is the one that failed; None takes the message's, else rank 0.
    """
    failure = message[0] if message else None
    said = failure.rank if failure is not None and rank is None else rank
    world = sum(len(RankSet.parse(each.ranks)) for each in plan.rank_classes)
    found: list[Parting] = []
    if said is not None and said >= world:
        found.append(
            Parting(
                kind="other_world",
                planned_bytes=None,
                found_bytes=None,
                sentence=f"rank {said} failed, and the plan has {world} ranks: the job ran with another world size",
            )
        )
        said = None
    statement = class_of(plan, said or 0)
    if snapshot is not None:
        found += _of_another_job(statement, snapshot)
    if message is not None:
        found += _of_the_device(statement, *message)
    if snapshot is not None:
        found += [*_of_the_world(statement, snapshot), *_of_phases(statement, snapshot)]
    found += _of_sums(statement, failure, snapshot)
    return tuple(found) or (_nothing(statement),)


def _of_another_job(statement: RankClassStatement, snapshot: SnapshotFailure) -> Iterator[Parting]:
    sizes = {
        math.prod(each.shape) * _DTYPE_BYTES[each.dtype]
        for each in statement.holders
        if each.shape and each.dtype in _DTYPE_BYTES
    }
    telling = {each for each in sizes if each >= _TELLING_BYTES}
    if len(telling) >= _KNOWN_SIZES and not telling & snapshot.sizes:
        yield Parting(
            kind="another_job",
            planned_bytes=None,
            found_bytes=None,
            sentence=f"none of the {len(telling)} largest sizes that the plan holds at its peak was ever asked "
            f"for in the "
            "snapshot: it is of another job, or of another rank",
        )


def _of_the_device(statement: RankClassStatement, failure: GpuFailure, judged: Judgement) -> Iterator[Parting]:
    total, planned = failure.total_bytes, statement.capacity_bytes
    if total is not None and abs(total - planned) > _SAME_GPU * max(total, planned):
        yield Parting(
            kind="other_gpu",
            planned_bytes=planned,
            found_bytes=total,
            sentence=f"planned for {size(planned)} of a GPU, and it ran on one of {size(total)}",
        )
    others = judged.held.get("other_processes", 0)
    if others:
        yield Parting(
            kind="other_process",
            planned_bytes=0,
            found_bytes=others,
            sentence=f"other processes held {size(others)} of the GPU, and the plan has it alone",
        )
    outside, expected = judged.held.get("outside_allocator"), statement.outside_allocator.total_bytes
    if outside is not None and outside > expected + max(CONTEXT_BYTES, expected // 10):
        yield Parting(
            kind="outside_allocator",
            planned_bytes=expected,
            found_bytes=outside,
            sentence=f"this process held {size(outside)} outside of PyTorch's allocator, and the plan has "
            f"{size(expected)}"
            " there (CUDA context and NCCL)",
        )
    unknown = judged.held.get("not_pytorch", judged.held.get("not_listed", 0))
    if unknown > expected + CONTEXT_BYTES:
        yield Parting(
            kind="not_pytorch",
            planned_bytes=expected,
            found_bytes=unknown,
            sentence=f"{size(unknown)} of the GPU are neither free nor PyTorch's, and the plan has "
            f"{size(expected)} outside"
            " of the allocator: another process, or more outside than was planned",
        )


def _of_the_world(statement: RankClassStatement, snapshot: SnapshotFailure) -> Iterator[Parting]:
    """A job that is sharded over fewer ranks holds a multiple of parameters and states before its forward."""
    held = snapshot.before_forward_bytes
    ends = [each.end_allocated_bytes for each in statement.phases if each.phase in (Phase.LOAD, Phase.OPTIMIZER_STEP)]
    ends = [each for each in ends if each]
    if not held or not ends or any(abs(held - each) <= 0.05 * each for each in ends):
        return
    for planned in ends:
        times = round(held / planned)
        if times >= 2 and abs(held - times * planned) <= 0.02 * held:
            yield Parting(
                kind="other_world",
                planned_bytes=planned,
                found_bytes=held,
                sentence=f"before its forward it held {times} times the {size(planned)} that are planned: as of "
                f"a job that "
                f"is sharded over a {times}th of the ranks",
            )
            return


def _of_phases(statement: RankClassStatement, snapshot: SnapshotFailure) -> Iterator[Parting]:
    """The first phase of a step in which more was held than planned."""
    for phase, most in snapshot.phase_peaks.items():
        planned = max((each.peak_allocated_bytes for each in _of(statement, phase)), default=None)
        wanted = most + (snapshot.size_bytes or 0 if phase is snapshot.phase else 0)
        if planned is not None and wanted > planned * (1 + _ALIKE):
            also = ", with the request that failed," if wanted != most else ""
            yield Parting(
                kind="phase",
                planned_bytes=planned,
                found_bytes=wanted,
                sentence=f"{phase.value} is the first phase in which more was held than planned: {size(wanted)}{also} "
                f"against {size(planned)}",
            )
            return


def _of_sums(
    statement: RankClassStatement, failure: GpuFailure | None, snapshot: SnapshotFailure | None
) -> Iterator[Parting]:
    allocated, unallocated, tried = _sums(failure, snapshot)
    if allocated is None:
        return
    peak = statement.peak
    wanted = allocated + (tried or 0)
    if wanted > peak.allocated_bytes * (1 + _ALIKE):
        yield Parting(
            kind="allocated",
            planned_bytes=peak.allocated_bytes,
            found_bytes=wanted,
            sentence=f"the job wanted {size(wanted)} in tensors, and its planned peak is {size(peak.allocated_bytes)} "
            f"({peak.phase.value} of iteration {peak.iteration}): it is not the job that was planned, or it "
            f"holds what the "
            "plan does not know of (longer batches, retained outputs)",
        )
    planned = max(peak.reserved_bytes - peak.allocated_bytes, 0)
    if unallocated is not None and unallocated > 2 * planned + statement.capacity_bytes // 20:
        yield Parting(
            kind="fragmentation",
            planned_bytes=planned,
            found_bytes=unallocated,
            sentence=f"{size(unallocated)} were reserved and in no tensor, planned are {size(planned)}: many different "
            "sizes, or an order of allocations that the plan has not seen",
        )


def _sums(failure: GpuFailure | None, snapshot: SnapshotFailure | None) -> tuple[int | None, int | None, int | None]:
    if snapshot is not None:
        state = snapshot.state
        return state.allocated_bytes, state.reserved_bytes - state.allocated_bytes, snapshot.size_bytes
    if failure is None or failure.allocated_bytes is None:
        return None, None, None
    return failure.allocated_bytes - failure.private_pool_bytes, failure.unallocated_bytes, failure.tried_bytes


def _of(statement: RankClassStatement, phase: Phase) -> list[PhaseStatement]:
    return [each for each in statement.phases if each.phase is phase]


def _nothing(statement: RankClassStatement) -> Parting:
    return Parting(
        kind="none",
        planned_bytes=statement.peak.allocated_bytes,
        found_bytes=None,
        sentence=f"nothing that is told differs from the plan, which says {statement.verdict.value}",
    )


SCHEMA = "planner.out_of_memory/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`partings` is empty where there was no plan to set it beside."""

    messages: tuple[tuple[GpuFailure, Judgement], ...]
    host: tuple[HostFailure, ...]
    snapshots: tuple[SnapshotFailure, ...]
    partings: tuple[Parting, ...] = ()
    plan_id: str = ""

    @property
    def cause(self) -> Cause:
        """Of what was said, the first whose cause is known, since the rest follows from it; else the snapshot's."""
        said = [(failure.line, judged.cause) for failure, judged in self.messages]
        said += [(each.line, each.cause) for each in self.host]
        causes = [cause for _, cause in sorted(said)] + [each.cause for each in self.snapshots]
        return next((each for each in causes if each is not Cause.UNKNOWN), Cause.UNKNOWN)


def explain(
    text: str = "",
    snapshot: bytes | None = None,
    *,
    plan: Predicted | None = None,
    rank: int | None = None,
    place: str = "the message",
) -> Explanation:
    """Explains what is in a text, in a snapshot, or in both of one failure.

    Raises PlannerError where neither tells of one, SnapshotError as replaying does.
    """
    messages = tuple((each, judge(each)) for each in find_messages(text))
    host = tuple(find_host_failures(text))
    if not messages and not host and snapshot is None:
        raise PlannerError(
            "nothing in it says that memory ran out",
            allowed="torch's CUDA, HIP or XPU out of memory messages, those of the driver, NCCL and CUDA's "
            "libraries, what "
            "the kernel, Slurm, Kubernetes and Ray say of a host, or a snapshot",
            remedy="give the whole log, with the lines above the last one",
            place=place,
        )
    figured = next((pair for pair in messages if pair[0].total_bytes is not None), None)
    snapshots = () if snapshot is None else explain_failures(snapshot, place, figured[0] if figured else None)
    partings = () if plan is None else set_beside(plan, rank, figured, snapshots[0] if snapshots else None)
    return Explanation(
        messages=messages,
        host=host,
        snapshots=snapshots,
        partings=partings,
        plan_id="" if plan is None else plan.plan_id,
    )


def to_json(found: Explanation) -> dict[str, Any]:
    """Plain values, keys in this order."""
    return {
        "schema": SCHEMA,
        "cause": found.cause.value,
        "messages": [_message(*each) for each in found.messages],
        "host": [fields_to_json(each) for each in found.host],
        "snapshots": [snapshot_to_json(each) for each in found.snapshots],
        "plan_id": found.plan_id,
        "partings": [fields_to_json(each) for each in found.partings],
    }


def _message(failure: GpuFailure, judged: Judgement) -> dict[str, Any]:
    own = innermost_own(failure.frames)
    told = fields_to_json(failure)
    told["frames"] = [fields_to_json(each) for each in failure.frames]
    told["other_processes"] = [fields_to_json(each) for each in failure.other_processes]
    return {
        **told,
        "known": failure.form is not Form.UNKNOWN,
        "raised_at": None if own is None else fields_to_json(own),
        **fields_to_json(judged),
    }


def snapshot_to_json(failure: SnapshotFailure) -> dict[str, Any]:
    """One device's failure as plain values."""
    told = fields_to_json(failure)
    del told["sizes"]  # thousands, and told to nobody
    told["state"] = fields_to_json(failure.state)
    told["state"]["holders"] = [fields_to_json(each) for each in failure.state.holders]
    told["remedies"] = [fields_to_json(each) for each in failure.remedies]
    return told

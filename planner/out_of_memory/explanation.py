"""What is known of a failure, put together: from a log, a snapshot, or both, and beside a plan.

The JSON object is `planner.out_of_memory/1`; all figures are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.comparing.plan_comparison import Predicted
from planner.errors import PlannerError
from planner.out_of_memory.beside_plan import Parting, set_beside
from planner.out_of_memory.causes import Judgement, judge
from planner.out_of_memory.failure import Cause, Form, GpuFailure
from planner.out_of_memory.host_words import HostFailure, find_host_failures
from planner.out_of_memory.messages import find_messages
from planner.out_of_memory.snapshot_failure import SnapshotFailure, explain_failures
from planner.out_of_memory.traceback_lines import innermost_own
from planner.report.statement import fields_to_json

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

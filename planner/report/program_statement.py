"""A program's run as values, and as the JSON object `planner.run/1`: rank classes as in a plan, and their grounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.host.statement import HostStatement, host_from_json, host_to_json
from planner.errors import PlannerError
from planner.report.statement import (
    Provenance,
    RankClassStatement,
    Seconds,
    Verdict,
    fields_to_json,
    host_verdict,
    rank_class_to_json,
    read_rank_class,
    worst_verdict,
)

SCHEMA = "planner.run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionStatement:
    """One sentence on what the figures rest on, where in the program it was needed, and how often."""

    about: str
    text: str
    place: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStatement:
    """A line of the program at which a truth value of the device decides: which way was taken, and what would have come
    of the other, as a sentence and, where it takes other memory, as both peaks."""

    place: str
    taken: bool
    outcome: str
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    other_allocated_bytes: int = 0
    other_reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepStatement:
    """The highest bytes of the fullest ranks at a step of the program to which its loop was made to count."""

    step: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatement:
    """What a program was seen to do, and what its ranks will hold. Ranks without a run of their own are like the
    representative of their class."""

    plan_id: str = ""
    """Under which a service keeps it; empty on the command line, which keeps nothing."""
    trace_id: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of whoever asked: `name`, `team`, `queue`."""
    command: tuple[str, ...]
    gpu: str
    nodes: int
    gpus_per_node: int
    ending: str
    """How the run ended."""
    iterations: int
    """All of them were run."""
    repeated: int = 0
    """Of these, how many did for the allocator what those before them did: they are folded in the replay."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Peaks in bytes of the first rank that was run as `torch.cuda` would say them at its end: since the last of
    `resets` by the program itself."""
    seen: Mapping[str, int]
    """Evaluations (`eval`), checkpoints saved and loaded, while it was watched."""
    unseen: tuple[str, ...]
    """Sentences on what was not seen."""
    allocator_conf: str
    communicators: tuple[int, ...] = ()
    """Sizes of the groups of a rank over which tensors of the device travelled."""
    calibrated: bool
    rank_classes: tuple[RankClassStatement, ...]
    """The fullest first."""
    steps_at: tuple[StepStatement, ...] = ()
    host: HostStatement | None = None
    """What the nodes hold; None of runs that were made before it was counted."""
    assumptions: tuple[AssumptionStatement, ...]
    out_of_memory: tuple[str, ...]
    """Where ranks would run out of memory, in CUDA's words; the program is not told, and goes on."""
    provenance: Provenance
    branches: tuple[BranchStatement, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Seconds = field(default_factory=Seconds)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any rank, and of any node."""
        return max(worst_verdict(self.rank_classes), host_verdict(self.host), key=list(Verdict).index)


def to_json(found: ProgramStatement) -> dict[str, Any]:
    """The statement as plain values, keys in the contract's order."""
    return {
        "schema": SCHEMA,
        "plan_id": found.plan_id,
        "trace_id": found.trace_id,
        "metadata": dict(found.metadata),
        "verdict": found.verdict.value,
        "calibrated": found.calibrated,
        "command": list(found.command),
        "gpu": found.gpu,
        "nodes": found.nodes,
        "gpus_per_node": found.gpus_per_node,
        "ending": found.ending,
        "iterations": found.iterations,
        "repeated": found.repeated,
        "counted": dict(found.counted),
        "seen": dict(found.seen),
        "unseen": list(found.unseen),
        "allocator_conf": found.allocator_conf,
        "communicators": list(found.communicators),
        "rank_classes": [rank_class_to_json(each) for each in found.rank_classes],
        **({"steps_at": [fields_to_json(each) for each in found.steps_at]} if found.steps_at else {}),
        **({} if found.host is None else {"host": host_to_json(found.host)}),
        "out_of_memory": list(found.out_of_memory),
        "assumptions": [fields_to_json(each) for each in found.assumptions],
        "branches": [fields_to_json(each) for each in found.branches],
        "provenance": fields_to_json(found.provenance),
        "notes": list(found.notes),
        "seconds": fields_to_json(found.seconds),
    }


def from_json(document: Mapping[str, Any]) -> ProgramStatement:
    """The statement that :func:`to_json` wrote. Raises PlannerError for another schema, or a broken document."""
    if document.get("schema") != SCHEMA:
        raise PlannerError(
            f"a document of schema {document.get('schema')!r} is no run of a program", allowed=SCHEMA, place="schema"
        )
    same = (
        "plan_id", "trace_id", "metadata", "gpu", "nodes", "gpus_per_node", "ending", "iterations", "repeated",
        "counted", "seen", "allocator_conf", "calibrated",
    )  # fmt: skip
    try:
        fields: dict[str, Any] = {name: document[name] for name in same}
        fields |= {
            name: tuple(document[name]) for name in ("command", "unseen", "communicators", "out_of_memory", "notes")
        }
        return ProgramStatement(
            **fields,
            rank_classes=tuple(read_rank_class(each) for each in document["rank_classes"]),
            steps_at=tuple(StepStatement(**each) for each in document.get("steps_at", ())),
            host=host_from_json(document["host"]) if "host" in document else None,
            assumptions=tuple(AssumptionStatement(**each) for each in document["assumptions"]),
            branches=tuple(BranchStatement(**each) for each in document["branches"]),
            provenance=Provenance(**document["provenance"]),
            seconds=Seconds(**document["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as wrong:
        raise PlannerError(f"the run cannot be read: {wrong}", remedy="run the program again") from wrong


def say_unseen(seen: Mapping[str, int], idle_optimizers: int = 0, *, infers: bool = False) -> tuple[str, ...]:
    """Sentences for what a run did not show, whose memory is in no figure."""
    if infers:
        return ("no training was seen: it is planned as inference",)
    sentences = []
    if not seen.get("eval"):
        sentences.append("no evaluation was seen")
    elif seen["eval"] == 1:
        sentences.append("one evaluation was seen, and none after it")
    if not seen.get("save"):
        sentences.append("no checkpoint was seen being saved")
    if idle_optimizers:
        which = "an optimizer" if idle_optimizers == 1 else f"{idle_optimizers} optimizers"
        sentences.append(f"{which} did not step twice")
    return tuple(sentences)

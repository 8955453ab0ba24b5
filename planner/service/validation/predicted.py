"""What was predicted of a job, out of the stored document of its plan or of its program's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.hardware import catalog
from planner.job.layout import Mesh
from planner.job.loading import load_bundle
from planner.job.schema import Gpu, Software
from planner.report import program_statement, statement
from planner.report.statement import RankClassStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What figures are for, and the figures. `communicators`: sizes of a rank's groups over NCCL."""

    gpu: Gpu
    software: Software
    allocator_conf: str
    world_size: int
    communicators: tuple[int, ...]
    rank_classes: tuple[RankClassStatement, ...]


def predicted_of(document: Mapping[str, Any]) -> Predicted:
    """Of a `planner.plan/1` or a `planner.run/1`. Raises PlannerError for a document that cannot be read."""
    if document.get("schema") == program_statement.SCHEMA:
        return _of_run(document)
    plan = statement.from_json(document)
    job = load_bundle(plan.job)
    mesh = Mesh.of(job.parallel)
    return Predicted(
        gpu=job.cluster.gpu,
        software=job.software,
        allocator_conf=job.allocator.conf,
        world_size=mesh.world_size,
        communicators=tuple(degree for degree in mesh.degrees if degree > 1),
        rank_classes=plan.rank_classes,
    )


def _of_run(document: Mapping[str, Any]) -> Predicted:
    found = program_statement.from_json(document)
    known = catalog.by_name(found.gpu)
    torch = ".".join(found.provenance.torch.split("+")[0].split(".")[:2])
    return Predicted(
        gpu=Gpu(name=known.name, total_bytes=known.total_bytes, arch=known.arch) if known else Gpu(name=found.gpu),
        software=Software(torch=torch),
        allocator_conf=found.allocator_conf,
        world_size=found.nodes * found.gpus_per_node,
        communicators=found.communicators,
        rank_classes=found.rank_classes,
    )

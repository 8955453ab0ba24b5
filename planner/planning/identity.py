"""Computes ids of plans and traces from the job, the software, the code and the calibration."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
from collections.abc import Mapping

from planner import distribution
from planner.calibration.interval import Calibration
from planner.facts.folder import workspace_table
from planner.job import bundle
from planner.job.json_text import canonical_json
from planner.job.schema import Job
from planner.planning import provenance as code
from planner.report.statement import Provenance


def trace_id_of(job: Job) -> str:
    """What the traces of this job are stored under, with the software of this process; metadata do not matter."""
    parts = {**software(), "code": code.trace_code(), **_libraries_of(job), **_facts_for(job)}
    return bundle.trace_id(job, parts)


def provenance_of(calibration: Calibration) -> Provenance:
    """The versions and tables on which the figures hinge."""
    versions = software()
    return Provenance(
        planner=versions["planner"],
        torch=versions["torch"],
        allocator_rules=code.allocator_rules(),
        catalog=code.catalog(),
        calibration=calibration.id,
    )


def plan_id(trace_id: str, provenance: Provenance) -> str:
    """`pl-` and 26 base32 characters, lower case: short enough for a Kubernetes label."""
    parts = {
        "trace_id": trace_id,
        "allocator_rules": provenance.allocator_rules,
        "catalog": provenance.catalog,
        "calibration": provenance.calibration,
    }
    digest = hashlib.sha256(canonical_json(parts).encode()).digest()
    return "pl-" + base64.b32encode(digest).decode().lower()[:26]


@functools.cache
def software() -> Mapping[str, str]:
    """Versions of planner and of what every trace runs, `none` for what is not installed."""
    return {"planner": distribution.version(), **{name: _version(name) for name in ("torch", "transformers")}}


def _facts_for(job: Job) -> Mapping[str, str]:
    """The workspaces that the trace counts; nothing where none were measured on the job's GPU and torch."""
    known = workspace_table(job.cluster.gpu.name, job.software.torch)
    return {"workspaces": known.digest} if known else {}


def _libraries_of(job: Job) -> Mapping[str, str]:
    """The libraries whose own code this job's trace runs, besides those of every job."""
    by_deepspeed = job.parallel.deepspeed is not None
    used = (("deepspeed", by_deepspeed), ("peft", job.model.adapter is not None))
    return {name: _version(name) for name, is_used in used if is_used}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"

"""Computes ids of plans and traces from the job, the software, the code and the calibration."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
from collections.abc import Mapping

from planner import distribution
from planner.hardware.facts import workspace_table, workspaces_digest
from planner.job import loading
from planner.job.json_text import canonical_json
from planner.job.schema import Job
from planner.planning.provenance import own
from planner.report.statement import Provenance
from planner.truth.calibration.interval import Calibration
from planner.versions import minor_of

_LIBRARIES = ("deepspeed", "peft")
"""Those whose own code some traces run."""


def trace_id_of(job: Job, versions: Mapping[str, str] | None = None) -> str:
    """What the traces of this job are stored under, with the software of this process, or with these `versions` of
    another one (:func:`every_version`); metadata do not matter."""
    known = versions or every_version()
    parts = {**_of_every_trace(known), "code": own().trace_code}
    # The libraries whose own code this job's trace runs, besides those of every job.
    used = (job.parallel.deepspeed is not None, job.model.adapter is not None)
    parts |= {name: known[name] for name, is_used in zip(_LIBRARIES, used, strict=True) if is_used}
    # The workspaces that the trace counts; nothing where none were measured on the job's GPU and torch.
    if workspaces := workspace_table(job.cluster.gpu.name, job.software.torch):
        parts["workspaces"] = workspaces.digest
    return loading.trace_id(job, parts)


def run_scope(versions: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """What decides the run of a program besides what is asked for."""
    known = versions or every_version()
    return {**_of_every_trace(known), "code": own().run_code, "workspaces": workspaces_digest()}


def search_scope(calibration: Calibration, versions: Mapping[str, str] | None = None) -> str:
    """What decides the answer of a search besides what is asked for."""
    known = versions or every_version()
    parts = {**known, "code": f"{own().trace_code} {own().search_code}", "workspaces": workspaces_digest()}
    return plan_id(canonical_json(parts), provenance_of(calibration))


def provenance_of(calibration: Calibration) -> Provenance:
    """The versions and tables on which the figures hinge."""
    versions = software()
    return Provenance(
        planner=versions["planner"],
        torch=versions["torch"],
        allocator_rules=own().allocator_rules,
        catalog=own().catalog,
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


@functools.cache
def every_version() -> Mapping[str, str]:
    """Those of :func:`software`, and of what some traces run."""
    return {**software(), **{name: _version(name) for name in _LIBRARIES}}


def installed_torch() -> str:
    """Major and minor of the torch that makes the plans of this process (`2.13`)."""
    return minor_of(software()["torch"])


def _of_every_trace(versions: Mapping[str, str]) -> Mapping[str, str]:
    return {name: versions[name] for name in software()}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"

"""Computes ids of plans and traces from the job, the software, the number of the answers and the calibration."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import replace

from planner import distribution
from planner.hardware import catalog
from planner.job import loading
from planner.job.json_text import canonical_json
from planner.job.packages import LIBRARIES, libraries_of
from planner.job.schema import Allocator, Gpu, Job, Metadata
from planner.report.statement import Provenance
from planner.truth.calibration.interval import Calibration
from planner.versions import installed_version, minor_of

ANSWERS = 19
"""The number of the answers that this code gives: of its traces, figures, verdicts, advice, rankings and runs. Whoever
changes an answer raises it by one, and no plan, trace or search that was stored under another number is answered again.
`make answers OUT=FOLDER` before a change and `make answers AGAINST=FOLDER` after it show whether it changes any. Plans
print it as their allocator rules."""


def trace_id_of(job: Job, versions: Mapping[str, str] | None = None) -> str:
    """What the traces of this job are stored under, with the software of this process, or with these `versions` of
    another one (:func:`every_version`); the same for jobs that differ in what no trace depends on."""
    known = versions or every_version()
    return loading.trace_id(traced_part(job), {**_software_of(job, known), "target": job.cluster.gpu.target})


def plan_id_of(job: Job, provenance: Provenance, versions: Mapping[str, str] | None = None) -> str:
    """What the plan of this job is stored under; metadata do not matter."""
    return plan_id(loading.trace_id(job, _software_of(job, versions or every_version())), provenance)


def _software_of(job: Job, versions: Mapping[str, str]) -> Mapping[str, str]:
    """What decides the traces of the job besides itself."""
    parts = {**_of_every_trace(versions), "answers": str(ANSWERS)}
    return parts | {name: versions[name] for name in libraries_of(job)}


def traced_part(job: Job) -> Job:
    """The job without what no trace depends on: names, how much memory there is, and what the allocator makes of it."""
    gpu = Gpu(arch=job.cluster.gpu.arch)
    return replace(
        job,
        metadata=Metadata(),
        allocator=Allocator(),
        cluster=replace(job.cluster, gpu=gpu, held_by_others_bytes=0, host_memory=0, gpu_fraction=1.0, gpu_memory=0),
    )


def run_scope(versions: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """What decides the run of a program besides what is asked for and its plan's provenance."""
    return _of_every_trace(versions or every_version())


def search_scope(calibration: Calibration, versions: Mapping[str, str] | None = None) -> str:
    """What decides the answer of a search besides what is asked for."""
    return plan_id(canonical_json(versions or every_version()), provenance_of(calibration))


def provenance_of(calibration: Calibration) -> Provenance:
    """The versions and tables on which the figures hinge."""
    versions = software()
    return Provenance(
        planner=versions["planner"],
        torch=versions["torch"],
        allocator_rules=str(ANSWERS),
        catalog=catalog.digest(),
        calibration=calibration.id,
    )


def plan_id(traced: str, provenance: Provenance) -> str:
    """Of what was traced, under this provenance: `pl-` and 26 base32 characters, lower case, short enough for a
    Kubernetes label."""
    parts = {
        "trace_id": traced,
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
    return {**software(), **{name: _version(name) for name in LIBRARIES}}


def installed_torch() -> str:
    """Major and minor of the torch that makes the plans of this process (`2.13`)."""
    return minor_of(software()["torch"])


def _of_every_trace(versions: Mapping[str, str]) -> Mapping[str, str]:
    return {name: version for name, version in versions.items() if name in software()}


def _version(distribution: str) -> str:
    return installed_version(distribution) or "none"

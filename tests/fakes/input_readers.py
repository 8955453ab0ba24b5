"""Every reader of input as one function of bytes: what it returns is a value, what it raises a PlannerError.

A reader goes as far as whatever happens with the input before anything is traced, replayed or measured.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.admission import kubernetes, webhook
from planner.admission.decision import Decision
from planner.admission.kueue_workloads import Workload, gpu_of_flavor
from planner.admission.policy import Action
from planner.allocator.rules import Rules
from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import verify
from planner.errors import PlannerError
from planner.job.loading import bundle_text, load_document, load_job
from planner.job.schema import Job
from planner.planning.planned_classes import refuse_unplannable
from planner.records import to_plain
from planner.service.history.job_table import check_change
from planner.service.http.body_readers import JSON, YAML, read_job, read_object
from planner.service.http.job_reports import build_change
from planner.service.http.problems import MOST_BYTES, problem
from planner.service.orders import build_order
from planner.service.validation import requests as requests
from planner.truth.calibration import interval as calibrations
from planner.truth.calibration.interval import Calibration
from planner.truth.failures.explanation import explain, to_json
from planner.truth.failures.snapshot_failure import explain_failures
from planner.truth.measuring import measurement_lines

Reader = Callable[[bytes], Any]


def spec_in_json(content: bytes) -> Any:
    """A body of POST /v1/plans and /v1/checks."""
    return _planned(read_job(content, JSON))


def spec_in_yaml(content: bytes) -> Any:
    """The same in YAML."""
    return _planned(read_job(content, YAML))


def spec_file(content: bytes) -> Any:
    """The file of `planner plan`, its bundle read once more."""
    job = _of_file(content, load_job)
    again = _of_file(bundle_text(job).encode(), load_job)
    assert bundle_text(again) == bundle_text(job)
    return _planned(job)


def validation(content: bytes) -> Any:
    """A body of POST /v1/validations that brings its job."""
    body = read_object(content)
    requests.check_keys(body)
    given = body.get("job", {})
    return requests.build_request(body, load_document(given if isinstance(given, dict) else {}))


def report(content: bytes) -> Any:
    """A body of PUT /v1/jobs."""
    change = build_change(read_object(content), "slurm", "4711")
    check_change("slurm", "4711", change)
    return change


def review(content: bytes) -> Any:
    """An AdmissionReview, and what is answered where its job cannot be read."""
    found = webhook.read(content)
    submitted = kubernetes.read_submission(found.job, found.namespace)
    try:
        job = kubernetes.job_of(submitted.annotations, submitted.namespace, _no_api)
        notes = kubernetes.differences(submitted.asked, job)
        decision = Decision(action=Action.WARN, reason="it was read", verdict="fits")
    except PlannerError as error:
        notes, decision = [], Decision(action=Action.WARN, reason=str(error), verdict="unplannable")
    answer = json.dumps(webhook.answer(found.uid, decision, notes))
    assert len(answer) < 64 * 1024
    return answer


def workload(content: bytes) -> Any:
    """A Workload of Kueue as its API sends it, and a ResourceFlavor."""
    document = read_object(content)
    found = Workload(document)
    decision = Decision(action=Action.ADMIT, reason="it fits", verdict="fits", plan_id="pl-a")
    return (
        found.name, found.owner, found.reservation, found.gpu_flavors, found.annotations, gpu_of_flavor(document),
        [f"{each.count * each.gpus}" for each in found.asked.pods], found.waits_for(["planner"]),
        json.dumps(found.write_answers(["planner"], decision, [], "now", "1")),
    )  # fmt: skip


def snapshot(content: bytes) -> Any:
    """The file of `planner replay`."""
    return verify(_of_file(content, read_snapshot), "expandable_segments:True").to_json()


def failed_snapshot(content: bytes) -> Any:
    """The snapshot of `planner explain`."""
    return [to_plain(each) for each in explain_failures(content, "a snapshot")]


def log(content: bytes) -> Any:
    """The log of `planner explain`, and what the service is told of a job's end."""
    return to_json(explain(content.decode("utf-8", "replace")))


def measurements(content: bytes) -> Any:
    """The file of `planner compare`."""
    return [each.peak for each in _of_file(content, measurement_lines.read)]


def allocator_conf(content: bytes) -> Any:
    """PYTORCH_ALLOC_CONF."""
    return Rules.from_conf(content.decode("utf-8", "replace"))


def calibration(content: bytes) -> Any:
    """A calibration that the history has."""
    return calibrations.from_json(read_object(content))


READERS: dict[str, Reader] = {
    each.__name__: each
    for each in (
        spec_in_json, spec_in_yaml, spec_file, validation, report, review, workload, snapshot, failed_snapshot, log,
        measurements, allocator_conf, calibration,
    )
}  # fmt: skip


def answer_of(reader: Reader, content: bytes) -> str:
    """What a person is told: `read`, or the message of a PlannerError, which is short. Anything else is a fault."""
    try:
        reader(content)
    except PlannerError as error:
        refused = error
    else:
        return "read"
    assert len(problem(refused).body) <= MOST_BYTES
    return str(refused)


def _planned(job: Job) -> str:
    refuse_unplannable(job)
    return build_order(job, Calibration.none(), b"key").plan_id


def _of_file(content: bytes, read: Callable[[Path], Any]) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read(Path(file.name))


def _no_api() -> Any:
    raise PlannerError("there is no cluster here")

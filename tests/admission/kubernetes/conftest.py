"""Jobs as people write them for Kubernetes, with a spec of a small job, and the real service for the hooks to ask.

Their shapes, and those of workloads, were held against the CRDs of KubeRay v1.7.0 and Kueue v0.19.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from answering import Answering, answering_service
from kubernetes_jobs import KINDS, pod_template
from real_service import RealService, serving

from planner.admission.client import Client
from planner.job.loading import bundle, load_yaml

SMALL = """\
metadata: {{name: {name}, team: nlp}}
model: {{decoder: {{layers: 4, hidden: 256, heads: 4, kv_heads: 4, ffn: 1024, vocab: 8192}}}}
train: {{micro_batch_size: 16, sequence_length: 512}}
cluster: {{nodes: 1, gpus_per_node: 1, gpu: {gpu}}}
"""


@pytest.fixture
def answering() -> Iterator[Answering]:
    with answering_service() as found:
        yield found


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    """The service itself over a socket, without Ray. It has planned once: the first plan of a process takes longest."""
    with serving(tmp_path_factory.mktemp("service")) as found:
        job = bundle(load_yaml(SMALL.format(name="first", gpu="H100-SXM-80GB")))
        Client(found.url, found.token, timeout_seconds=120).plan(job, 0)
        yield found


@pytest.fixture(scope="session")
def spec_text() -> Callable[..., str]:
    """A spec that refers to nothing, of a job that takes some gigabytes."""

    def write(name: str = "small", gpu: str = "H100-SXM-80GB") -> str:
        return SMALL.format(name=name, gpu=gpu)

    return write


@pytest.fixture(scope="session")
def make_job() -> Callable[..., dict[str, Any]]:
    """A job of a kind, as the API server has it when it asks the webhook: with its uid."""

    def make(
        kind: str = "Job",
        annotations: dict[str, str] | None = None,
        *,
        name: str = "sft",
        uid: str = "",
        of_pods: dict[str, str] | None = None,
        **pods: Any,
    ) -> dict[str, Any]:
        job = KINDS[kind](pod_template(annotations=of_pods, **pods))
        job["metadata"] = {
            "name": name,
            "namespace": "team-nlp",
            "uid": uid or f"uid-of-{kind.lower().replace(' ', '-')}-{name}",
            "annotations": annotations or {},
        }
        return job

    return make


@pytest.fixture(scope="session")
def make_review() -> Callable[..., dict[str, Any]]:
    """The question of the API server about a job that is created."""

    def make(job: dict[str, Any], **more: Any) -> dict[str, Any]:
        group, _, version = job["apiVersion"].rpartition("/")
        request = {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": group, "version": version, "kind": job["kind"]},
            "resource": {"group": group, "version": version, "resource": job["kind"].lower() + "s"},
            "name": job["metadata"]["name"],
            "namespace": job["metadata"]["namespace"],
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": job,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            **more,
        }
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}

    return make

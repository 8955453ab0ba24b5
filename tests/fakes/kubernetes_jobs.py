"""One job of every kind that planner reads on Kubernetes, as people write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]


def pod_template(
    gpus: int = 1,
    product: str = "",
    annotations: dict[str, str] | None = None,
    resource: str = "nvidia.com/gpu",
    command: tuple[str, ...] = ("torchrun", "train.py"),
) -> Document:
    spec: Document = {
        "containers": [
            {
                "name": "trainer",
                "image": "registry.example/train:1",
                "command": list(command),
                "resources": {"limits": {resource: str(gpus)}} if gpus else {},
            }
        ],
        "restartPolicy": "Never",
    }
    if product:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": product}
    return {"metadata": {"annotations": annotations or {}}, "spec": spec}


def _pod(template: Document) -> Document:
    return {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}


def _job(template: Document) -> Document:
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 0, "template": template}}


def _jobset(template: Document) -> Document:
    replicated = {"name": "workers", "template": {"spec": {"parallelism": 1, "completions": 1, "template": template}}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": [replicated]}}


def _train_job(template: Document) -> Document:
    (container,) = template["spec"]["containers"]
    trainer = {"numNodes": 1, "command": container["command"], "resourcesPerNode": container["resources"]}
    spec = {"runtimeRef": {"kind": "ClusterTrainingRuntime", "name": "torch-distributed"}, "trainer": trainer}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}


def _pytorch_job(template: Document) -> Document:
    replicas = {"Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": template}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}


def _mpi_job(template: Document) -> Document:
    launcher = pod_template(gpus=0, command=("mpirun", "-np", "1", "python", "train.py"))
    specs = {"Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": 1, "template": template}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "spec": {"mpiReplicaSpecs": specs}}


def _ray_spec(template: Document) -> Document:
    counts = {"replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    return {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod_template(gpus=0)},
        "workerGroupSpecs": [{"groupName": "gpus", **counts, "rayStartParams": {}, "template": template}],
    }


def _ray_job(template: Document) -> Document:
    spec = {"entrypoint": "python train.py", "shutdownAfterJobFinishes": True, "rayClusterSpec": _ray_spec(template)}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": spec}


def _ray_cluster(template: Document) -> Document:
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": _ray_spec(template)}


def _volcano_job(template: Document) -> Document:
    spec = {"schedulerName": "volcano", "tasks": [{"name": "worker", "replicas": 1, "template": template}]}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": spec}


def _leader_worker_set(template: Document) -> Document:
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "spec": spec}


KINDS: Mapping[str, Callable[[Document], Document]] = {
    "Pod": _pod,
    "Job": _job,
    "JobSet": _jobset,
    "TrainJob": _train_job,
    "PyTorchJob": _pytorch_job,
    "MPIJob": _mpi_job,
    "RayJob": _ray_job,
    "RayCluster": _ray_cluster,
    "Volcano Job": _volcano_job,
    "LeaderWorkerSet": _leader_worker_set,
}
"""Each makes a job of one pod of a template."""

"""Jobs that are marked to be planned by running their program: what each hook asks, and what it does then."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answering import Answering
from kubernetes_jobs import KINDS, pod_template
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package

from planner.admission import ray_jobs, slurm
from planner.admission.kubernetes_api import Api
from planner.admission.policy import Action, Policy
from planner.admission.webhook import Review, decide

Plans = dict[str, dict[str, Any]]


@pytest.fixture
def runs(plans: Plans) -> Plans:
    """What the service answers to programs: a plan's figures, without a spec."""

    def of(plan: dict[str, Any]) -> dict[str, Any]:
        kept = {name: each for name, each in plan.items() if name not in ("job", "advice")}
        run = {
            "schema": "planner.plan/2", "metadata": {"name": "sft"}, "command": ["python", "train.py"],
            "gpu": "H100-SXM-80GB", "nodes": 1, "gpus_per_node": 8, "ending": "it repeats itself", "iterations": 3,
            "seen": {}, "unseen": [], "allocator_conf": "", "assumptions": [], "out_of_memory": [],
        }  # fmt: skip
        return {**kept, **run}

    return {name: of(plan) for name, plan in plans.items()}


@pytest.fixture
def folder(tmp_path: Path, answering: Answering, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a job is submitted, on a machine that knows the service."""
    monkeypatch.setenv("PLANNER_SERVER", answering.url)
    monkeypatch.setenv("PLANNER_ADMISSION_WAIT_SECONDS", "0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("not sent")
    (tmp_path / "link").symlink_to("/etc/hostname")
    return tmp_path


def submit_at_slurm(capsys: pytest.CaptureFixture[str], comment: str) -> list[str]:
    assert slurm.main(["submit", "--", comment]) == 0
    return capsys.readouterr().out.splitlines()


def test_slurm_asks_about_the_batch_script_in_the_folder_where_it_is_submitted(
    answering: Answering, runs: Plans, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answering.says(200, runs["exceeds"])
    (folder / "policy.ini").write_text("[slurm]\ngpu = A100-SXM-80GB\n")

    assert slurm.main(["--policy", "policy.ini", "submit", "--", "run=train.sbatch"]) == 0

    action, verdict, plan_id, text = capsys.readouterr().out.splitlines()
    assert (action, verdict, plan_id) == ("refuse", "exceeds", runs["exceeds"]["plan_id"])
    assert text.startswith("planner: refused: sft does not fit: ranks 0-7 need 90.00 GiB, 80.00 GiB available")
    (asked,) = answering.asked
    assert (asked.path, asked.headers["Prefer"]) == ("/v1/plans", "respond-async, wait=0")
    assert asked.body == {"command": ["sbatch", "train.sbatch"], "path": str(folder), "gpu": "A100-SXM-80GB"}


@pytest.mark.parametrize(
    ("status", "document", "verdict"),
    [
        (202, {"plan_id": "pl-" + "a" * 26, "verdict": "pending"}, "pending"),
        (403, {"type": "urn:planner:problem:x", "problem": "this service runs no programs"}, "unplannable"),
        (422, {"type": "urn:planner:problem:programcrashed", "problem": "it ended with an error"}, "unplannable"),
        (500, {"title": "Internal Server Error"}, "unreachable"),
    ],
)
def test_what_was_not_run_is_refused_by_nobodys_default(
    answering: Answering, folder: Path, capsys: pytest.CaptureFixture[str], status: int, document: Any, verdict: str
) -> None:
    assert folder.is_dir()
    answering.says(status, document)

    assert submit_at_slurm(capsys, "run=train.sbatch")[:2] == ["warn", verdict]


def test_ray_sends_the_working_directory_and_the_entrypoint(
    answering: Answering, runs: Plans, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answering.says(200, runs["fits"])
    metadata: dict[str, Any] = {"planner": "run", "planner.gpu": "H100-SXM-80GB"}

    ray_jobs.check(
        metadata_json=metadata, working_dir=str(folder), entrypoint=("torchrun", "--nproc-per-node", "8", "train.py"),
        runtime_env_json='{"env_vars": {"MODE": "a b", "PLANNER_TOKEN": "canary"}}', entrypoint_num_gpus=8,
    )  # fmt: skip

    assert metadata[ray_jobs.PLAN] == runs["fits"]["plan_id"]
    assert "planner: sft fits" in capsys.readouterr().err
    (asked,) = answering.asked
    assert asked.path == "/v1/plans"  # and no query: proxies keep addresses in their logs
    assert json.loads(asked.headers["X-Planner-Run"]) == {
        "command": ["env", "MODE=a b", "PLANNER_TOKEN=***", "torchrun", "--nproc-per-node", "8", "train.py"],
        "gpu": "H100-SXM-80GB",
    }
    with tarfile.open(fileobj=io.BytesIO(asked.body)) as sent:
        assert sent.getnames() == ["train.py"]


def test_ray_sends_what_ray_itself_would_upload(
    answering: Answering, runs: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (
        "train.py", ".env", "keys/id.pem", "keys/name.txt", "data/a.bin", "data/keep/b.bin", "lib/c.py",
        "lib/scratch/d.txt", "excluded/e.bin", ".git/HEAD", "venv/bin/python", "__pycache__/t.pyc", "wandb/run.log",
    )  # fmt: skip
    folder = tmp_path / "job"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "empty").mkdir()
    (folder / ".gitignore").write_text(".env\n*.pem\n")
    (folder / ".rayignore").write_text("data/\n")
    (folder / "lib" / ".gitignore").write_text("scratch\n")
    (tmp_path / "runtime.yaml").write_text("excludes: [excluded]\nworking_dir: " + str(folder))
    monkeypatch.setenv("PLANNER_SERVER", answering.url)
    answering.says(200, runs["fits"])

    ray_jobs.check(metadata_json={"planner": "run"}, entrypoint=("python", "train.py"),
                   runtime_env=str(tmp_path / "runtime.yaml"))  # fmt: skip

    create_package(
        str(folder), tmp_path / "ray.zip", include_gitignore=True,
        excludes=[*get_runtime_env_default_excludes(), "excluded"],
    )  # fmt: skip
    (asked,) = answering.asked
    with tarfile.open(fileobj=io.BytesIO(asked.body)) as sent, zipfile.ZipFile(tmp_path / "ray.zip") as uploaded:
        assert sorted(sent.getnames()) == sorted(name.rstrip("/") for name in uploaded.namelist())
        assert sorted(sent.getnames()) == [
            ".gitignore", ".rayignore", "empty", "keys/name.txt", "lib/.gitignore", "lib/c.py", "train.py",
            "wandb/run.log",
        ]  # fmt: skip


def test_ray_sends_nothing_where_its_rules_cannot_be_followed(
    answering: Answering, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for runtime_env in ('{"excludes": "*.pem"}', '{"excludes": [1]}', "[]", "{", '"text"'):
        ray_jobs.check(metadata_json={"planner": "run"}, entrypoint=("python", "train.py"), working_dir=str(folder),
                       runtime_env_json=runtime_env)  # fmt: skip

    assert capsys.readouterr().err.count("planner: warning") == 5
    assert answering.asked == []


def test_ray_sends_no_folder_that_the_job_does_not_upload(
    answering: Answering, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    ray_jobs.check(metadata_json={"planner": "run"}, entrypoint=("python", "train.py"))

    assert "the job uploads no folder of its own" in capsys.readouterr().err
    assert answering.asked == []


@pytest.fixture
def reviewed(answering: Answering) -> Callable[..., Any]:
    def ask(annotations: dict[str, Any], container: dict[str, Any], **policy: Any) -> Any:
        spec = {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}, **container}],
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "sft", "annotations": annotations},
            "spec": {"template": {"spec": spec}},
        }
        review = Review(uid="1", operation="CREATE", kind="Job", namespace="nlp", job=job, dry_run=False)
        return decide(review, Policy(server=answering.url, wait_seconds=0.0, **policy), _no_api)[0]

    return ask


def _no_api() -> Api:
    raise AssertionError("nothing of the cluster is read")


def test_kubernetes_asks_about_the_command_of_the_container_with_gpus(
    answering: Answering, runs: Plans, reviewed: Callable[..., Any]
) -> None:
    answering.says(200, runs["exceeds"])

    decision = reviewed(
        {"planner.dev/run": "/shared/sft"}, {"command": ["torchrun"], "args": ["--nproc-per-node=8", "train.py"]}
    )

    assert (decision.action, decision.verdict) == ("refuse", "exceeds")
    (asked,) = answering.asked
    assert asked.body == {
        "command": ["torchrun", "--nproc-per-node=8", "train.py"], "path": "/shared/sft", "gpu": "H100-SXM-80GB",
        "name": "sft",
    }  # fmt: skip


def test_torchrun_in_a_pytorch_job_is_asked_about_with_the_nodes_of_the_job(answering: Answering, runs: Plans) -> None:
    answering.says(200, runs["fits"])
    job = KINDS["PyTorchJob"](pod_template(gpus=8))
    job["metadata"] = {"name": "sft", "annotations": {"planner.dev/run": "/shared/sft"}}
    job["spec"]["pytorchReplicaSpecs"]["Worker"] = {"replicas": 3, "template": pod_template(gpus=8)}
    review = Review(uid="1", operation="CREATE", kind="PyTorchJob", namespace="nlp", job=job, dry_run=False)

    decide(review, Policy(server=answering.url, wait_seconds=0.0), _no_api)

    (asked,) = answering.asked
    assert asked.body["command"] == ["env", "PET_NNODES=4", "PET_NPROC_PER_NODE=8", "torchrun", "train.py"]


@pytest.mark.parametrize(
    ("annotation", "container", "said"),
    [
        ("sft", {"command": ["python", "t.py"]}, "it names no folder"),
        ("/shared/sft", {}, "no container that asks for GPUs says its command"),
    ],
)
def test_a_mark_that_cannot_be_followed_is_unplannable(
    answering: Answering, reviewed: Callable[..., Any], annotation: str, container: dict[str, Any], said: str
) -> None:
    decision = reviewed({"planner.dev/run": annotation}, container, unplannable=Action.REFUSE)

    assert (decision.action, decision.verdict, said in decision.reason) == ("refuse", "unplannable", True)
    assert answering.asked == []

"""The pod that the chart describes, as far as one can have it without Kubernetes: the real Ray and the real service
as user 10001 without capabilities, on a root file system that is read-only, with what the chart gives it.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificate_authority import Authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from rendered_chart import REPOSITORY, only, pods, rendered

from planner.runtime.user_cache import user_cache
from planner.runtime.walls import Walls

USER = "10001"
JOB = {
    "metadata": {"name": "tiny"},
    "model": {"decoder": {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab": 512}},
    "train": {"micro_batch_size": 1, "sequence_length": 64},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "H100-SXM-80GB"},
}
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(Walls(as_root=True).refusal() is not None, reason="bubblewrap does not work here"),
]


def pod_like(volumes: dict[str, str], shown: dict[Path, Path]) -> list[str]:
    """A sandbox with what the pod has: its user, its volumes, a network of its own; `shown` may be read."""
    mounts = [part for path in volumes.values() for part in ("--tmpfs", path)]
    mounts += [
        part for path, at in {REPOSITORY: REPOSITORY, **shown}.items() for part in ("--ro-bind", str(path), str(at))
    ]
    return [
        "bwrap", "--unshare-all", "--unshare-user", "--uid", USER, "--gid", USER, "--cap-drop", "ALL",
        "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
        "--tmpfs", "/dev/shm", "--tmpfs", "/var/lib", *mounts, "--remount-ro", "/var/lib", "--chdir", "/tmp", "--",
    ]  # fmt: skip


def head() -> dict[str, Any]:
    """What the chart says of the head, and what KubeRay adds to it (v1.7, ray-operator/controllers/ray/common)."""
    service = only(rendered("small"), "RayService")["spec"]
    (pod,) = pods(rendered("small"))
    (container,) = pod.containers
    return {
        "start": {
            "dashboard-host": "0.0.0.0",
            "metrics-export-port": "8080",
            **service["rayClusterConfig"]["headGroupSpec"]["rayStartParams"],
        },
        "serve": service["serveConfigV2"],
        "port": yaml.safe_load(service["serveConfigV2"])["http_options"]["port"],
        "environment": {each["name"]: each["value"] for each in container["env"]},
        "volumes": {each["name"]: each["mountPath"] for each in container["volumeMounts"]},
    }


def test_the_service_runs_in_the_pod_that_the_chart_describes(tmp_path: Path) -> None:
    cache = user_cache()
    chart = head()
    environment = {
        **chart["environment"],
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(cache.parent),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "b" * 64,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    given = {**chart, "job": "/mnt/job.yaml"}
    walls = pod_like(chart["volumes"], {cache: cache, tmp_path: Path("/mnt")})

    ended = subprocess.run(
        [*walls, "env", "-i", *(f"{name}={value}" for name, value in environment.items()),
         sys.executable, str(Path(__file__).with_name("in_a_pod.py"))],
        input=json.dumps(given), capture_output=True, text=True, timeout=900,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout)
    assert found.pop("verdict").startswith("planner: tiny fits")
    assert found == {
        "user": int(USER),
        "root_can_be_written": False,
        "ready_probe_of_workers": 200,
        "live_probe": 200,
        "dashboard_without_token": 401,
        "ray_metrics": 200,
        "haproxy": True,
        "history": True,
    }


def self_signed(name: str, folder: Path) -> None:
    """A certificate for this name as cert-manager's self-signing issuer makes it, in a Secret's two files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(private)


def test_the_webhook_of_the_chart_opens_in_its_pod(tmp_path: Path) -> None:
    """With the chart's command, policy and paths; the service is away, and so the job is admitted with a warning."""
    found = rendered("webhook-cert-manager")
    (container,) = next(pod.containers for pod in pods(found) if pod.owner.endswith("-webhook"))
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    folders = {name: tmp_path / name for name in ("certificate", "policy", "token", "clients")}
    for folder in folders.values():
        folder.mkdir()
    (name, *_) = only(found, "Certificate")["spec"]["dnsNames"]
    self_signed(name, folders["certificate"])
    (folders["policy"] / "admission.ini").write_text(only(found, "ConfigMap")["data"]["admission.ini"])
    (folders["token"] / "token").write_text("t" * 40)
    shown = tmp_path / "client.crt", tmp_path / "client.key"
    Authority(folders["clients"]).issue(*shown, "planner-webhook-client")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "tiny", "namespace": "default"}}
    job["metadata"]["annotations"] = {"planner.dev/bundle": yaml.safe_dump(JOB)}
    request = {
        "uid": "u-1", "operation": "CREATE", "kind": {"group": "batch", "version": "v1", "kind": "Job"},
        "resource": {"group": "batch", "version": "v1", "resource": "jobs"}, "name": "tiny", "namespace": "default",
        "dryRun": True, "object": job,
    }  # fmt: skip
    given = {
        "command": [*container["command"], *container["args"]],
        "name": name,
        "port": 8443,
        "ready": container["readinessProbe"]["httpGet"]["path"],
        "certificate": f"{mounts['certificate']}/tls.crt",
        "shown": [f"/mnt/{file.name}" for file in shown],
        "review": {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request},
    }
    (tmp_path / "given.json").write_text(json.dumps(given))
    stores = [part for each in folders for part in ("--ro-bind", str(folders[each]), mounts[each])]
    program = Path(__file__).with_name("ask_a_hook.py")
    walls = pod_like({"tmp": mounts["tmp"]}, {tmp_path: Path("/mnt")})

    ended = subprocess.run(
        [*walls[:-1], "--tmpfs", "/etc", *stores, "--remount-ro", "/etc", "--", "env", "-i",
         f"PATH={Path(sys.executable).parent}:/usr/bin:/bin", f"PYTHONPATH={REPOSITORY}",
         sys.executable, str(program), "/mnt/given.json"],
        capture_output=True, text=True, timeout=6000,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr[-3000:]
    answer = json.loads(ended.stdout)
    assert (answer["status"], answer["response"]["uid"], answer["response"]["allowed"]) == (200, "u-1", True)
    assert any("admitted unchecked" in warning for warning in answer["response"]["warnings"])


def test_the_redis_of_the_chart_asks_for_its_password(tmp_path: Path) -> None:
    """Its real command, where /tmp and /data are all that can be written, and nobody sees the password in passing."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    (container,) = next(pod.containers for pod in pods(rendered("embedded")) if pod.owner.endswith("-redis"))
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (tmp_path / "password").write_text("correct-horse", encoding="utf-8")
    words = [*container["command"], *container["args"]]
    ask = "redis-cli --no-auth-warning"
    script = f"""
        {shlex.join(words)} >/dev/null & trap 'kill $!' EXIT
        until {ask} -a correct-horse ping 2>/dev/null | grep -q PONG; do :; done
        {ask} ping; {ask} -a wrong ping; {ask} -a correct-horse config get appendonly
        for one in /proc/[0-9]*; do [ $(cat $one/comm) != redis-server ] || tr "\\0" " " < $one/cmdline; done
    """
    system = [part for path in ("/usr", "/bin", "/lib", "/lib64", "/etc") for part in ("--ro-bind-try", path, path)]
    stores = [part for name in ("tmp", "data") for part in ("--tmpfs", mounts[name])]

    ended = subprocess.run(
        ["bwrap", "--unshare-all", "--unshare-user", "--uid", "999", "--gid", "999", "--cap-drop", "ALL",
         "--die-with-parent", *system, "--proc", "/proc", "--dev", "/dev", *stores,
         "--ro-bind", str(tmp_path), mounts["password"], "--remount-ro", "/", "--", "bash", "-c", script],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip

    said = ended.stdout.split("\n")
    assert "NOAUTH Authentication required." in said, ended.stderr[-2000:]
    assert "WRONGPASS" in ended.stdout + ended.stderr
    assert said[-3:-1] == ["appendonly", "yes"]
    assert said[-1].startswith("redis-server")
    assert "correct-horse" not in said[-1]

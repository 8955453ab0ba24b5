"""A cluster as it is deployed: Ray's own store in Redis, the history in PostgreSQL. Ray's goes away, and comes back."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.service.local_ray import (
    OBJECT_STORE_BYTES,
    end_processes,
    environment,
    free_port_range,
    free_ports,
    instance_folder,
)

pytestmark = pytest.mark.cluster

NewJob = Callable[..., dict[str, Any]]
Eventually = Callable[..., Any]


@dataclass
class Deployed:
    """The service, and the processes of the Ray on which it runs."""

    service: Any
    ray: Any
    stack: ExitStack

    def kill_the_gcs(self) -> Callable[[], None]:
        """What starts it anew, as whatever supervises it does: the same command in the same surroundings."""
        (gcs,) = self.ray.named("gcs_server")
        command, surroundings = _words(gcs), dict(word.partition("=")[::2] for word in _words(gcs, "environ"))
        self.ray.kill("gcs_server")

        def start_again() -> None:
            self.stack.callback(_start(command, surroundings).kill)

        return start_again


@pytest.fixture(scope="module")
def redis(session_of: Any, program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis that holds nothing yet."""
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("redis")
    command = [program("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    with session_of(*command) as (process, _):
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def deployed(redis: str, postgresql: Any, session_of: Any, planner_serve: Any) -> Iterator[Deployed]:
    with ExitStack() as stack:
        folder = stack.enter_context(instance_folder())
        stack.callback(end_processes, folder)
        port, client, agent, exporter = free_ports(4)
        ray = Path(sys.executable).with_name("ray")
        surroundings = {
            **environment(folder, free_port_range()),
            **_haproxy_of_serve(folder),
            "RAY_REDIS_ADDRESS": redis,
            "RAY_external_storage_namespace": f"planner-{secrets.token_hex(4)}",
            "RAY_AUTH_MODE": "disabled",
        }
        start = [
            ray, "start", "--head", "--port", port, "--ray-client-server-port", client, "--temp-dir", folder,
            "--num-cpus", 4, "--object-store-memory", OBJECT_STORE_BYTES, "--include-dashboard=false",
            "--dashboard-agent-listen-port", agent, "--metrics-export-port", exporter, "--disable-usage-stats",
        ]  # fmt: skip
        process, processes = stack.enter_context(session_of(*start, **surroundings))
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
        address = _address_of_the(processes)
        joining = {**surroundings, "RAY_ADDRESS": address}
        service = stack.enter_context(
            planner_serve(postgresql.new_database(), surroundings=joining, trace_workers=1, trace_seconds=60)
        )
        yield Deployed(service, processes, stack)


def _haproxy_of_serve(folder: Path) -> dict[str, str]:
    """As deploy/ has it; its ports and files are otherwise the same for all clusters of a machine."""
    metrics, stats, fallback = map(str, free_ports(3))
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": metrics,
        "RAY_SERVE_HAPROXY_STATS_PORT": stats,
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": fallback,
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
    }


def _start(command: list[str], surroundings: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _address_of_the(cluster: Any) -> str:
    (raylet,) = cluster.named("raylet")
    words = _words(raylet)
    return next(word.partition("=")[2] for word in words if word.startswith("--gcs-address="))


def _words(process: int, what: str = "cmdline") -> list[str]:
    return Path(f"/proc/{process}/{what}").read_text().rstrip("\0").split("\0")


def test_the_gcs_is_killed_and_comes_back(deployed: Deployed, new_job: NewJob) -> None:
    service, known = deployed.service, new_job()
    before = service.post(known)
    actors = set(deployed.ray.named("ray::ServeReplica", "ray::TracingWorker"))
    start_again = deployed.kill_the_gcs()
    while_away = [service.post(known) for _ in range(20)] + [service.post(new_job())]
    start_again()

    assert before.status_code == 200
    assert [each.status_code for each in while_away] == [200] * 21
    assert {each.content for each in while_away[:20]} == {before.content}

    # What lived, lives on; and what dies is replaced again, which needs a GCS.
    after = service.insist(new_job())
    assert set(deployed.ray.named("ray::ServeReplica", "ray::TracingWorker")) == actors
    killed = deployed.ray.kill("ray::ServeReplica:planner:Tracers")
    deployed.ray.wait_for("ray::ServeReplica:planner:Tracers", besides=killed)
    again = service.insist(new_job())
    service.wait_until_ready()

    plans = {each.json()["plan_id"] for each in (*while_away, after, again)}
    assert len(plans) == 4
    assert plans <= service.stored()


def test_it_ends_in_order_and_leaves_the_cluster_as_it_was(deployed: Deployed, eventually: Eventually) -> None:
    (server,) = [pid for pid in deployed.service.processes.named("python") if "serve" in _words(pid)]
    os.kill(server, signal.SIGTERM)

    eventually(lambda: not deployed.service.processes.commands(), "planner serve is still there", 60)
    eventually(
        lambda: not deployed.ray.named("ray::ServeReplica", "ray::TracingWorker"), "replicas are still there", 60
    )
    assert deployed.ray.named("raylet")

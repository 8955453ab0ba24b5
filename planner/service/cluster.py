"""A Ray of our own, for a process that serves by itself: where it puts its files, on which ports it listens."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 200 * 10**6
"""Plans and traces pass through it, nothing stays."""
RAYS_OWN_PORTS = range(10002, 20000)
"""Where Ray starts its workers (ray start --min-worker-port, --max-worker-port)."""
LONGEST_FOLDER = 16
"""Characters: HAProxy's socket may have 97, of which Ray takes 68, and we 11."""
_VITAL = {"gcs_server", "raylet"}
FREE_PORTS = range(20100, 29900)
"""Where a port is looked for that nobody may need: below those that Linux gives out by itself."""


def environment(folder: Path) -> dict[str, str]:
    """What Ray Serve reads while it is imported: HAProxy in front of the replicas, all of its files in `folder`.

    With HAProxy a store hit is answered eight times as often as with Ray's proxy in Python. Its ports are chosen here
    since those that Ray chooses are the same for all clusters of a machine.
    """
    metrics, stats, fallback, replicas = free_ports(4)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas + 100),
        # A replica that ends need not wait for load balancers elsewhere to notice.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
        # A proxy that died is found out at the third look; in between nobody is answered.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        # Ray's default of 15 makes those who trace wait for everybody else on the machine, and somebody waits for them.
        "RAY_worker_niceness": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for Ray's and HAProxy's sockets, whose names may have about a hundred characters; gone after use."""
    usual = Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="pl", dir=usual if len(str(usual)) <= LONGEST_FOLDER else "/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens now, outside of those that Ray takes for its workers."""
    found: list[int] = []
    # By chance, so that two who look at the same moment rarely find the same.
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no port is free")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def local_ray(folder: Path, **more: Any) -> Iterator[None]:
    """A Ray in this process and its children, without a dashboard; ended when the block ends."""
    import ray

    options: Mapping[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(folder),
        "configure_logging": False,
        **more,
    }
    with _thread_of_its_own() as thread:
        thread.submit(ray.init, **options).result()
        try:
            yield
        finally:
            ray.shutdown()
            end_haproxy(folder)


def end_haproxy(folder: Path) -> None:
    """HAProxy is no child of Ray: where Ray was killed it stays, and keeps the port."""
    ours = re.compile(rb"(?:^|\0)" + re.escape(bytes(folder)) + rb"/[^\0]*haproxy\.cfg\0")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if ours.search((process / "cmdline").read_bytes()):
                os.kill(int(process.name), signal.SIGKILL)


def lost_parts() -> list[str]:
    """Which processes of this process's own Ray have died, of those without which it is none."""
    from ray._private import worker

    node = worker._global_node
    return [] if node is None else sorted({part for part, _ in node.dead_processes()} & _VITAL)


@contextlib.contextmanager
def joined_ray() -> Iterator[None]:
    """The Ray at RAY_ADDRESS, which goes on when the block ends."""
    import ray

    with _thread_of_its_own() as thread:
        thread.submit(ray.init, configure_logging=False).result()
        try:
            yield
        finally:
            ray.shutdown()


def _thread_of_its_own() -> ThreadPoolExecutor:
    """Where `ray.init` runs: in the main thread it would put its own handler in the place of who waits for SIGTERM.

    The thread has to stay: when it ends, Linux ends the processes that it started (PR_SET_PDEATHSIG).
    """
    return ThreadPoolExecutor(1, thread_name_prefix="ray")

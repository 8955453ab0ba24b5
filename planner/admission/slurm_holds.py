"""Releases or cancels Slurm jobs that were submitted held because their plan was not ready.

Runs beside slurmctld, as an operator of Slurm. A job says in its comment which plan it waits for.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.admission.client import Client
from planner.admission.policy import Answer, Policy
from planner.errors import PlannerError

SYSTEM = "slurm"
HELD = re.compile(r"planner:held:(pl-[a-z2-7]{26})")
"""In a job's comment."""
HOLD_SECONDS = 3600.0
"""How long a job waits for its plan: what cannot be planned would wait for ever."""
_COMMAND_SECONDS = 20
_FIELDS = "%A|%k"
"""squeue: job id, comment."""

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job in the queue."""

    job_id: str
    comment: str
    plan_id: str


class HeldJobs:
    """Looks through the queue; what fails is tried again with the next look."""

    def __init__(
        self,
        folder: Path,
        client: Client,
        policy: Policy,
        *,
        seconds: float = HOLD_SECONDS,
        run: Run | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` has the verdicts that are there, `run` is Slurm's commands."""
        self._folder, self._client, self._policy = folder, client, policy
        self._seconds, self._run, self._now = seconds, run or _run, now
        self._since: dict[str, float] = {}

    def update(self) -> None:
        """Acts on every held job whose plan is there, or that has waited for long. Raises PlannerError."""
        jobs = held_jobs(self._run(["squeue", "--noheader", "--states=PENDING", f"--format={_FIELDS}"]))
        self._since = {job.job_id: self._since.get(job.job_id, self._now()) for job in jobs}
        for job in jobs:
            self._act(job)

    def _act(self, job: HeldJob) -> None:
        file = self._folder / job.plan_id
        if file.is_file():
            action, verdict, *text = file.read_text(encoding="utf-8").splitlines()
            note = f"planner: {verdict}, {job.plan_id}"
            if action in ("admit", "warn"):
                self._release(job, job.plan_id, note)
            else:
                self._cancel(job, " ".join(text) or note)
        elif self._now() - self._since[job.job_id] >= self._seconds:
            reason = f"planner: the job was not checked: no plan of it after {self._seconds:g} s"
            if self._policy.unplannable is Answer.REFUSE:
                self._cancel(job, reason)
            else:
                self._release(job, "pending", reason)

    def _release(self, job: HeldJob, note: str, about: str) -> None:
        """Released first: a job whose comment no longer says that it waits would not be found again."""
        self._run(["scontrol", "release", job.job_id])
        comment = HELD.sub(f"planner:{note}", job.comment, count=1)
        self._run(["scontrol", "update", f"JobId={job.job_id}", f"Comment={comment}", f"AdminComment={about}"])
        if note == job.plan_id:
            self._client.bind(SYSTEM, job.job_id, {"plan_id": job.plan_id})

    def _cancel(self, job: HeldJob, why: str) -> None:
        self._run(["scontrol", "update", f"JobId={job.job_id}", f"AdminComment={why}"])
        self._run(["scancel", job.job_id])


def held_jobs(listed: str) -> list[HeldJob]:
    """The jobs of squeue's lines that wait for a plan; an array is one job."""
    found: dict[str, HeldJob] = {}
    for line in listed.splitlines():
        job_id, _, comment = line.partition("|")
        waits = HELD.search(comment)
        if waits and job_id.isdigit():
            found[job_id] = HeldJob(job_id, comment, waits[1])
    return list(found.values())


def hold_seconds(site: Mapping[str, str]) -> float | None:
    """The `[slurm]` section's `hold_seconds`; None where jobs are not submitted held. Raises PlannerError."""
    text = site.get("hold_seconds", "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise PlannerError(
            f"{text[:40]!r} is no time", allowed=f"whole seconds, such as {HOLD_SECONDS:g}", place="slurm.hold_seconds"
        )
    return float(text)


def _run(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlannerError(f"{command[0]} does not work here: {error}") from None
    if ended.returncode:
        raise PlannerError(f"{' '.join(command[:2])} fails: {ended.stderr.strip()[:200]}")
    return ended.stdout

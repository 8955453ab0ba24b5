"""The hook in front of any launcher: `planner check JOB.yaml -- torchrun ...` runs the command, if it may run."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from planner.admission.decision import Decision
from planner.admission.policy import Action, Policy
from planner.admission.service_query import bind, client_of
from planner.errors import PlannerError
from planner.truth.measuring.job_reports import job_of

SYSTEM = "launcher"
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""As shells report them."""
LEASE_SECONDS = 300
"""How long a job counts as running after the last word of a launcher that was killed."""
RENEW_SECONDS = 100.0
"""Two of three words may be lost."""
USUAL: Mapping[str, Any] = {"refuse_uncalibrated": True, "unreachable": Action.REFUSE}
"""Whoever puts this hook in front of a command asks for a refusal, also where nobody answers; an operator's file may
say otherwise."""


def environment_of(decision: Decision, policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    """What the command is told, for the callback in its training: which plan it was admitted with, and as which job."""
    if not policy.server or not decision.plan_id:
        return dict(given)
    system, job = job_of(given) or (SYSTEM, uuid.uuid4().hex)
    variables = {"PLANNER_PLAN_ID": decision.plan_id, "PLANNER_JOB_SYSTEM": system, "PLANNER_JOB_ID": job}
    return {"PLANNER_SERVER": policy.server, **given, **variables}


def bind_to_plan(decision: Decision, policy: Policy, environment: Mapping[str, str]) -> str:
    """Tells the service of the job that begins now; what went wrong, or nothing."""
    if not policy.server:
        return ""
    facts: dict[str, Any] = {"started_at": _now()}
    if can_supervise():
        facts["lease_seconds"] = LEASE_SECONDS
    return bind(policy, *_job(environment), decision, facts)


def launch(command: Sequence[str], environment: Mapping[str, str], policy: Policy, *, bound: bool) -> tuple[int, str]:
    """Runs the command; returns its exit code, or a shell's and why if it cannot be run.

    `bound`: the service knows of the job, with a lease that is renewed while the command runs, and learns of its end.
    Ends by a signal if the command did. Otherwise this process becomes the command.
    """
    if not bound or not can_supervise():
        try:
            os.execvpe(command[0], list(command), dict(environment))
        except (OSError, ValueError) as error:
            return _not_started(command, error)
    try:
        code = run(
            command, environment, lambda: _tell(policy, environment, {"lease_seconds": LEASE_SECONDS}), RENEW_SECONDS
        )
    except (OSError, ValueError) as error:
        _tell(policy, environment, {"ended_at": _now(), "outcome": "failed"})
        return _not_started(command, error)
    # A command that ended well may not have trained at all: that it finished is for its callback to say.
    _tell(policy, environment, {"ended_at": _now(), **({"outcome": "failed"} if code else {})})
    return end_alike(code), ""


def _tell(policy: Policy, environment: Mapping[str, str], facts: Mapping[str, Any]) -> None:
    """A word that is lost is made up for by the next, or by the end of the lease."""
    with suppress(PlannerError):
        client_of(policy, SYSTEM).bind(*_job(environment), facts)


def _job(environment: Mapping[str, str]) -> tuple[str, str]:
    return environment.get("PLANNER_JOB_SYSTEM", SYSTEM), environment.get("PLANNER_JOB_ID", "")


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _not_started(command: Sequence[str], error: OSError | ValueError) -> tuple[int, str]:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NOT_FOUND, f"{command[0]}: no such command"
    return NOT_EXECUTABLE, f"{command[0]}: {getattr(error, 'strerror', None) or error}"


PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH")
    if hasattr(signal, name)
)
_FROM_KERNEL = 128
"""SI_KERNEL (asm-generic/siginfo.h): the terminal's, which the command gets itself."""
_SET_PDEATHSIG = 1
"""PR_SET_PDEATHSIG (linux/prctl.h)."""


def can_supervise() -> bool:
    return hasattr(signal, "sigtimedwait") and hasattr(signal, "SIGCHLD")


def run(command: Sequence[str], environment: Mapping[str, str], renew: Callable[[], None], every: float) -> int:
    """Runs the command to its end and returns its exit code, negative for the signal that ended it.

    `renew` is called in a thread of its own every so many seconds while the command runs. Raises OSError and ValueError
    if the command cannot be started. Only for the main thread.
    """
    waited_for = {*PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    # Who ignores it, as some shells' background jobs do, would never learn of an exit code.
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_IGN
    try:
        child = subprocess.Popen(
            list(command),
            env=dict(environment),
            close_fds=False,  # as after exec: what this process was given is the command's
            preexec_fn=_before_exec(before, children_ignored=ignored),
        )
        ended = threading.Event()

        def keep_renewing() -> None:
            while not ended.wait(every):
                renew()

        threading.Thread(target=keep_renewing, daemon=True).start()
        while (code := child.poll()) is None:
            received = signal.sigtimedwait(waited_for, 1.0)  # also if somebody else took the SIGCHLD
            if received and received.si_signo != signal.SIGCHLD and received.si_code != _FROM_KERNEL:
                child.send_signal(received.si_signo)
        ended.set()
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_alike(code: int) -> int:
    """Ends this process by the signal that ended the command; returns the exit code of one that ended by itself."""
    if code >= 0:
        return code
    number = signal.Signals(-code)
    resource.setrlimit(
        resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
    )  # the core is the child's
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _before_exec(mask: set[signal.Signals] | set[int], *, children_ignored: bool) -> Callable[[], None]:
    """In the child: signals as they were, and an end when this process is killed."""
    parent, library = os.getpid(), ctypes.CDLL(None)

    def prepare() -> None:
        if children_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        library.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was killed before this was set
            os._exit(1)

    return prepare

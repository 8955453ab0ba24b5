"""Runs a command as this process's child, so that this process can report its end.

To whoever started it the command looks as if it had taken this process's place: the same terminal, process group and
files, signals passed on, its exit code or its signal as this process's own, and nothing left when this one is killed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

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
    """Whether this system has what it takes: Linux."""
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
        threading.Thread(target=_renewing, args=(renew, every, ended), daemon=True).start()
        code = _until_it_ends(child, waited_for)
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


def _until_it_ends(child: subprocess.Popen[bytes], waited_for: set[signal.Signals]) -> int:
    while True:
        code = child.poll()
        if code is not None:
            return code
        told = signal.sigtimedwait(waited_for, 1.0)  # also if somebody else took the SIGCHLD
        if told is None or told.si_signo == signal.SIGCHLD or told.si_code == _FROM_KERNEL:
            continue
        child.send_signal(told.si_signo)


def _renewing(renew: Callable[[], None], every: float, ended: threading.Event) -> None:
    while not ended.wait(every):
        renew()

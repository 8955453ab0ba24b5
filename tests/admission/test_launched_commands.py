"""`planner check --server URL -- COMMAND`: the command runs as if it had taken planner's place, and its end is told."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from planner.admission import command_hook
from planner.admission.policy import Policy

SECONDS = 600.0
"""Until which a test gives up; nothing waits for it."""
JobFile = Callable[..., Path]


def arguments(answering: Any, job: Path, script: str) -> list[str]:
    python = [sys.executable, "-c", script]
    return [sys.executable, "-m", "planner", "check", str(job), "--server", answering.url, "--", *python]


def environment(**more: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PLANNER_", "SLURM"))}
    own = {"PLANNER_JOB_SYSTEM": "launcher", "PLANNER_JOB_ID": "a", "PLANNER_ADMISSION_WAIT_SECONDS": "0"}
    return {**mine, **own, **more}


def until(holds: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


def alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def asked(answering: Any, plans: dict[str, dict[str, Any]]) -> Any:
    """A service that knows the job's plan and takes whatever is told of it."""
    answering.knows(plans["fits"])
    return answering


@pytest.fixture
def start(asked: Any, job_file: JobFile) -> Callable[..., subprocess.Popen[str]]:
    def begin(script: str, variables: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            arguments(asked, job_file(), script), env=environment(**(variables or {})), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
        )  # fmt: skip

    return begin


def told(answering: Any) -> list[dict[str, Any]]:
    """What was put about the job."""
    return [each.body for each in answering.asked if each.method == "PUT"]


@pytest.mark.parametrize(("code", "outcome"), [(0, None), (7, "failed")])
def test_the_end_of_a_command_is_told(start: Any, asked: Any, code: int, outcome: str | None) -> None:
    process = start(f"import sys; print('ran'); sys.exit({code})")
    out, _ = process.communicate(timeout=SECONDS)

    assert (process.returncode, out) == (code, "ran\n")
    began, ended = told(asked)
    assert began.keys() == {"plan_id", "started_at", "lease_seconds"}
    assert began["lease_seconds"] == command_hook.LEASE_SECONDS > 2 * command_hook.RENEW_SECONDS
    assert ended["ended_at"] >= began["started_at"]
    assert ended.get("outcome") == outcome


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_command(start: Any, asked: Any, number: int) -> None:
    script = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    process = start(script)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)

    assert process.wait(SECONDS) == 5
    assert told(asked)[-1]["outcome"] == "failed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_a_signal_ends_ends_planner_by_it(start: Any, asked: Any, number: int) -> None:
    process = start(f"import os; os.kill(os.getpid(), {int(number)})")
    process.communicate(timeout=SECONDS)

    assert process.returncode == -number
    assert told(asked)[-1]["outcome"] == "failed"


def test_a_planner_that_is_killed_leaves_no_command_behind(start: Any, asked: Any) -> None:
    """And nobody to tell: the job's lease is all there is."""
    process = start("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    command = int(process.stdout.readline())
    process.kill()
    process.wait(SECONDS)

    until(lambda: not alive(command), "the command outlived planner")
    assert len(told(asked)) == 1


def test_the_command_has_the_terminals_group_and_what_planner_was_given(start: Any) -> None:
    readable, writable = os.pipe()
    script = (
        f"import json, os, signal; os.write({writable}, b'x')\n"
        "print(json.dumps({'group': os.getpgrp(), 'session': os.getsid(0), 'parent': os.getppid(),"
        " 'blocked': len(signal.pthread_sigmask(signal.SIG_BLOCK, []))}))"
    )
    process = start(script, pass_fds=[writable])
    out, err = process.communicate(timeout=SECONDS)
    os.close(writable)

    assert process.returncode == 0, err
    assert json.loads(out) == {
        "group": os.getpgrp(), "session": os.getsid(0), "parent": process.pid, "blocked": 0,
    }  # fmt: skip
    assert os.read(readable, 1) == b"x"
    os.close(readable)


def test_an_interrupt_at_the_terminal_reaches_the_command_once(asked: Any, job_file: JobFile) -> None:
    script = (
        "import signal, time\n"
        "seen, ends = [], []\n"
        "signal.signal(signal.SIGINT, lambda *_: (seen.append(1), print('interrupted', flush=True)))\n"
        "signal.signal(signal.SIGUSR1, lambda *_: ends.append(1))\n"
        "print('ready', flush=True)\n"
        "while not ends: time.sleep(0.05)\n"
        "print('interrupts:', len(seen), flush=True)"
    )
    child, terminal = pty.fork()
    if child == 0:
        command = arguments(asked, job_file(), script)
        os.execvpe(command[0], command, environment())
    shown = ""

    def read() -> str:
        nonlocal shown
        if select.select([terminal], [], [], 0.1)[0]:
            with suppress(OSError):  # Linux says so at the end
                shown += os.read(terminal, 4096).decode()
        return shown

    until(lambda: "ready" in read(), "the command did not start")
    os.write(terminal, b"\x03")
    until(lambda: "interrupted" in read(), "the command was not interrupted")
    os.kill(child, signal.SIGUSR1)  # handed on after an interrupt: by their numbers
    until(lambda: re.search(r"interrupts: \d", read()) is not None, "the command did not end")
    _, status = os.waitpid(child, 0)
    os.close(terminal)

    assert "interrupts: 1" in shown
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_service_that_goes_away_changes_nothing_for_the_command(start: Any, asked: Any) -> None:
    process = start("import sys; print('ran', flush=True); sys.stdin.read(); sys.exit(3)", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ran\n"
    asked.held.clear()  # whatever is told from now on is never answered
    process.communicate("", timeout=SECONDS)

    assert process.returncode == 3


def test_a_job_that_no_service_knows_of_becomes_the_command(start: Any, asked: Any) -> None:
    asked.answers[-1] = (202, {}, json.dumps({"plan_id": "pl-x", "verdict": "pending"}).encode())
    asked.answers[:] = asked.answers[-1:]
    process = start("import os; print(os.getpid())", {"PLANNER_ADMISSION_PENDING": "admit"})
    out, _ = process.communicate(timeout=SECONDS)

    assert int(out) == process.pid
    assert told(asked) == []


def test_a_lease_is_renewed_while_the_command_runs() -> None:
    """In a process of its own: the main thread's signals are its own there. The command ends with the third renewal."""
    script = (
        "import os, sys\n"
        "from planner.admission import command_hook\n"
        "reads, writes = os.pipe()\n"
        "os.set_inheritable(reads, True)\n"
        "wait = f'import os; [os.read({reads}, 1) for _ in range(3)]'\n"
        "code = command_hook.run([sys.executable, '-c', wait], os.environ, lambda: os.write(writes, b'x'), 0.1)\n"
        "print(code)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS)

    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_a_launched_job_no_longer_counts_when_its_command_has_ended(service: Any, job_file: JobFile) -> None:
    """The finding, by the service's own history."""
    job = job_file()
    command = [
        sys.executable, "-m", "planner", "check", str(job), "--server", service.url,
        "--", sys.executable, "-c", "import sys; print('ran', flush=True); sys.stdin.read()",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env=environment(PLANNER_TOKEN=service.token, PLANNER_JOB_ID="counted",
                                 PLANNER_ADMISSION_WAIT_SECONDS="100", PLANNER_ADMISSION_TIMEOUT_SECONDS="100"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ran\n"
    during = [job.job_id for job in service.history.jobs.open()]
    process.communicate("", timeout=SECONDS)

    assert "counted" in during
    assert "counted" not in [job.job_id for job in service.history.jobs.open()]
    assert service.history.jobs.get("launcher", "counted").ended_at is not None


def test_a_system_without_these_signals_becomes_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(command_hook, "can_supervise", lambda: False)
    monkeypatch.setattr(os, "execvpe", lambda *given: became.append(given))
    command_hook.launch(["train"], {"A": "b"}, Policy(), bound=True)

    assert became == [("train", ["train"], {"A": "b"})]
    assert capsys.readouterr() == ("", "")

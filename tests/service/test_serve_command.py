"""`planner serve` as a person, or a supervisor, runs it: a process that starts, answers, and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from planner_serve import Processes, until

from planner import cli
from planner.service.local_ray import free_ports

pytestmark = pytest.mark.cluster


def command(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "planner", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PLANNER_TRACE_WORKERS": "1", **environment},
    )


def test_a_port_in_use_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["serve", "--port", str(taken.getsockname()[1])]) == 2

    assert "it is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("database", "said"), [("sqlite:////nowhere/at/all.sqlite", "cannot be opened"), ("sqlite://", "in memory")]
)
def test_a_database_that_cannot_be_used_is_said_before_anything_starts(
    database: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--port", str(free_ports(1)[0]), "--database", database]) == 2
    assert said in capsys.readouterr().err


def hears_sigterm(process: subprocess.Popen[str]) -> bool:
    said = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return said is not None and bool(int(said[1], 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.parametrize("stage", ["before Ray", "the application is coming up"])
def test_a_signal_while_it_starts_ends_it_too(tmp_path: Path, stage: str) -> None:
    (port,) = free_ports(1)
    process = command("--port", port, "--database", f"sqlite:///{tmp_path / 'planner.sqlite'}")
    until(lambda: hears_sigterm(process), "it does not hear signals")
    if stage != "before Ray":
        Processes(process).wait_for("ray::ServeController")
    process.terminate()
    out, _ = process.communicate(timeout=600)

    assert (process.returncode, out) == (0, "")
    until(lambda: not Processes(process).commands(), f"left: {Processes(process).commands()}")

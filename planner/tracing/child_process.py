"""A child process that is asked on its standard input and answers on its standard output, watched until it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended, and what it left."""

    code: int
    """As `subprocess` has it: negative for a signal."""
    answer: bytes
    last_line: str
    """Of its standard error."""


def run(
    command: Sequence[str],
    request: Mapping[str, Any],
    watch: Callable[[int], None],
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs the command in a session of its own. `watch` is called with its process id, time and again.

    What `watch` raises ends the child, with all that it started in its session, and is raised.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered, tempfile.TemporaryFile() as said:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        child = subprocess.Popen(
            command, stdin=asked, stdout=answered, stderr=said, start_new_session=True, env=environment
        )
        try:
            while child.poll() is None:
                watch(child.pid)
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(child)
        return Ended(child.returncode, _all(answered), _last_line(said))


def resident_bytes(process: int) -> int:
    """Of a process of this machine; 0 once it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end(child: subprocess.Popen[bytes]) -> None:
    """And whatever it started: the child is the leader of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _all(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _last_line(stream: IO[bytes]) -> str:
    lines = _all(stream).decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""

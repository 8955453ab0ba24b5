"""Children of tests, asked for and waited for."""

from __future__ import annotations

import time
from pathlib import Path

from planner.runtime.messages import Task


def task(function: str, argument: object = None) -> Task:
    return Task(f"child_programs:{function}", argument)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(path: Path, seconds: float = 300) -> str:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} does not come"
        time.sleep(0.01)
    return path.read_text()


def all_end(processes: list[int], seconds: float = 300) -> bool:
    until = time.monotonic() + seconds
    while any(map(is_running, processes)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_running, processes))

"""What happens inside of the pod: Ray starts with the chart's parameters, planner is deployed on it and asked.

Run by test_on_a_read_only_system.py, in a sandbox that has a pod's limits; prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 600.0
PROGRAMS = Path(sys.executable).parent


def main(given: dict[str, Any]) -> dict[str, Any]:
    parameters = [f"--{name}={value}" for name, value in given["start"].items()]
    run(PROGRAMS / "ray", "start", "--head", "--node-ip-address=127.0.0.1", *parameters)
    Path("/tmp/serve.yaml").write_text(given["serve"], encoding="utf-8")
    run(PROGRAMS / "serve", "deploy", "--address", "http://127.0.0.1:8265", "/tmp/serve.yaml")
    until_ready(f"http://127.0.0.1:{given['port']}/readyz")
    check = [PROGRAMS / "planner", "check", given["job"], "--server", f"http://127.0.0.1:{given['port']}"]
    said = subprocess.run(check, capture_output=True, text=True, check=False)
    return {
        "user": os.getuid(),
        "root_can_be_written": can_be_written("/usr/x") or can_be_written("/x"),
        "ready_probe_of_workers": status(f"http://127.0.0.1:{given['port']}/-/healthz"),
        "live_probe": status("http://127.0.0.1:52365/api/healthz"),
        "dashboard_without_token": status("http://127.0.0.1:8265/api/serve/applications/"),
        "ray_metrics": status("http://127.0.0.1:8080/metrics"),
        "haproxy": any(b"haproxy" in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")),
        "history": Path("/var/lib/planner/planner.sqlite").is_file(),
        "verdict": said.stdout + said.stderr,
    }


def run(*command: str | Path) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{command}: {ended.stdout}{ended.stderr}")


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until_ready(address: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while status(address) != 200:
        if time.monotonic() > end:
            sys.exit(f"{address} is not ready after {PATIENCE_SECONDS:g} s")
        time.sleep(0.2)


def can_be_written(path: str) -> bool:
    try:
        Path(path).touch()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))

"""Ctrl-C ends the service of a cluster, whose Ray nobody could use without its token. Runs after the journey."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planner_serve import until

from planner.service.http.openapi import EXAMPLE_JOB

pytestmark = pytest.mark.cluster


def test_its_ray_asks_for_a_token_and_ctrl_c_is_a_clean_end_of_all_processes_at_once(cluster: Any) -> None:
    """Its ports listen on every address of the machine, and run code."""
    service, main = cluster.service, cluster.service.processes.main
    (address,) = {
        found[1] for each in service.processes.commands() if (found := re.search(r"--gcs-address=(\S+)", each))
    }
    command = [str(Path(sys.executable).with_name("ray")), "status", "--address", address]
    without, bearer = (
        subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "RAY_AUTH_MODE": mode})
        for mode in ("disabled", "token")
    )

    assert without.returncode != 0
    assert "Unauthenticated" in without.stderr + without.stdout
    assert (bearer.returncode, "Resources" in bearer.stdout) == (0, True), bearer.stderr
    assert service.post(EXAMPLE_JOB, "/v1/checks", 60).status_code in (200, 202)

    os.killpg(main.pid, signal.SIGINT)

    assert main.wait(600) == 0
    until(lambda: not service.processes.commands(), f"left: {service.processes.commands()}", 5)

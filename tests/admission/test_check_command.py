"""`planner check` by a service, and in front of a launcher, as a person runs it: in a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JobFile = Callable[..., Path]
LAUNCHED = "import os, sys; print('ran', os.environ.get('PLANNER_PLAN_ID', '')); sys.exit(int(sys.argv[1]))"


def check(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PLANNER_")}
    mine["PLANNER_ADMISSION_WAIT_SECONDS"] = "60"  # this machine may be busy with other tests
    return subprocess.run(
        [sys.executable, "-m", "planner", "check", *map(str, arguments)],
        capture_output=True, text=True, timeout=6000, env={**mine, **environment},
    )  # fmt: skip


def launch(code: int = 0) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", LAUNCHED, str(code))


def test_a_job_that_fits_runs_with_its_own_exit_code_and_is_bound_to_its_plan(service: Any, job_file: JobFile) -> None:
    ended = check(job_file(), "--server", service.url, *launch(7), PLANNER_TOKEN=service.token, SLURM_JOB_ID="99")

    assert ended.returncode == 7, ended.stderr
    assert ended.stderr.startswith("planner: small fits: rank 0 needs 2.")
    plan_id = service.history.jobs.get("slurm", "99").plan_id
    assert ended.stdout == f"ran {plan_id}\n"


def test_a_job_that_does_not_fit_does_not_run_and_its_owner_is_told_why(service: Any, job_file: JobFile) -> None:
    ended = check(job_file("large", "1.9GiB"), "--server", service.url, *launch(), PLANNER_TOKEN=service.token)

    assert (ended.returncode, ended.stdout) == (3, "")
    assert re.fullmatch(
        r"planner: refused: large does not fit: rank 0 needs 2\.\d\d GiB, 1\.90 GiB available \(sm_90\); "
        r"peak in backward of iteration 2; uncalibrated\n"
        r"planner: the smallest change that fits: train\.recompute: full \(then 1\.\d\d GiB\)\n",
        ended.stderr,
    )


@pytest.mark.parametrize(
    ("options", "policy", "code", "out"),
    [
        ((), {}, 3, ""),
        (("--run-unchecked",), {}, 0, "ran \n"),
        (("--run-unchecked",), {"PLANNER_ADMISSION_UNREACHABLE": "hold"}, 3, ""),
        ((), {"PLANNER_ADMISSION_UNREACHABLE": "admit"}, 0, "ran \n"),
    ],
    ids=["nobody says more", "to be run all the same", "the operator refuses", "the operator admits"],
)
def test_a_service_that_is_down(
    job_file: JobFile, options: tuple[str, ...], policy: dict[str, str], code: int, out: str
) -> None:
    ended = check(job_file(), "--server", "http://127.0.0.1:1", *options, *launch(), **policy)

    assert (ended.returncode, ended.stdout) == (code, out)
    assert "the planner service at http://127.0.0.1:1 cannot be reached" in ended.stderr


@pytest.mark.parametrize(
    ("options", "policy", "code", "out"),
    [
        ((), {}, 3, ""),
        (("--run-unchecked",), {}, 0, "ran \n"),
        ((), {"PLANNER_ADMISSION_UNREACHABLE": "admit"}, 0, "ran \n"),
        ((), {"PLANNER_ADMISSION_PENDING": "admit"}, 0, "ran \n"),
        (("--run-unchecked",), {"PLANNER_ADMISSION_PENDING": "refuse"}, 3, ""),
    ],
    ids=["nobody says more", "to be run all the same", "as unreachable", "the operator admits", "the operator refuses"],
)
def test_a_command_whose_plan_is_not_ready_runs_only_if_somebody_says_so(
    answering: Any, job_file: JobFile, options: tuple[str, ...], policy: dict[str, str], code: int, out: str
) -> None:
    for _ in range(2):
        answering.says(202, {"plan_id": "", "verdict": "pending"})
    variables = {"PLANNER_ADMISSION_WAIT_SECONDS": "0", **policy}
    ended = check(job_file(), "--server", answering.url, *options, *launch(), **variables)

    assert (ended.returncode, ended.stdout) == (code, out), ended.stderr
    assert "the plan is not ready after 0 s" in ended.stderr


@pytest.mark.parametrize("command", [(), ("--format", "json"), launch()], ids=["a line", "json", "a command"])
def test_the_service_of_the_environment_is_asked(service: Any, job_file: JobFile, command: tuple[str, ...]) -> None:
    variables = {"PLANNER_SERVER": service.url, "PLANNER_TOKEN": service.token}
    ended = check(job_file("large", "1.9GiB"), *command, **variables)

    assert ended.returncode == 3, ended.stderr
    assert (
        "the smallest change that fits" in ended.stdout + ended.stderr or '"change": "train.recompute' in ended.stdout
    )


def test_an_empty_server_plans_here_whatever_the_environment_says(job_file: JobFile) -> None:
    ended = check(job_file(), "--server", "", PLANNER_SERVER="http://127.0.0.1:1")

    assert ended.returncode == 0
    assert "127.0.0.1" not in ended.stderr
    assert ended.stdout.startswith("small fits: ")


def test_without_a_command_the_verdict_is_the_answer(service: Any, job_file: JobFile) -> None:
    ended = check(job_file("large", "1.9GiB"), "--server", service.url, "--format", "json", PLANNER_TOKEN=service.token)

    assert (ended.returncode, ended.stderr) == (3, "")
    said = json.loads(ended.stdout)
    assert (said["schema"], said["action"], said["verdict"]) == ("planner.admission/1", "refuse", "exceeds")


@pytest.mark.parametrize(("command", "code"), [("/nowhere/torchrun", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_run_ends_as_in_a_shell(service: Any, job_file: JobFile, command: str, code: int) -> None:
    ended = check(job_file(), "--server", service.url, "--", command, PLANNER_TOKEN=service.token)

    assert (ended.returncode, ended.stdout) == (code, "")


def test_asking_a_service_takes_no_torch(service: Any, job_file: JobFile) -> None:
    """As on a login node that has PyYAML and nothing else."""
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['numpy'] = None\n"
        "from planner.cli import main\n"
        f"sys.exit(main(['check', {str(job_file())!r}, '--server', {service.url!r}]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=600, env={**os.environ, "PLANNER_TOKEN": service.token},
    )  # fmt: skip

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("planner: small fits")

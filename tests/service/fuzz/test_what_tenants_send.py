"""Two thousand hostile tarballs, launch lines and answers of programs (900 in CI): each is refused soon, or taken."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzz_settings import ASKED, EXAMPLES
from hostile_answers import HONEST, PARTS, hostile_answers
from hostile_launches import HostileLaunch, as_body, hostile_launches
from hostile_tarballs import hostile_tarballs, packed
from machine_speed import takes_too_long
from request_contexts import about_body
from soak import share

from planner.errors import PlannerError, ProgramError
from planner.job.launching.line import parse
from planner.runtime.messages import PROBLEM, Answer
from planner.service.http.problems import problem
from planner.service.http.run_requests import read_job_or_program
from planner.tracing.program import rank_process
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS
from planner.units import MIB

COUNT = EXAMPLES if ASKED else share(700, in_ci=300)
"""Of each kind."""
MOST_SECONDS, MOST_GROWTH, MOST_ANSWER = 2.0, 200 * MIB, 16 * 1024
CANARY = "canary-7f3a"
ORDER = ProgramOrder(line=parse(["python", "t.py"]), rank=0, gpu=Gpu(product="", arch="sm_90", total_bytes=1))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a program, with a file beside its own that only the service may read; and a variable of the
    service's."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("secret.sh", "secret.yaml"):
        (folder / name).write_text(f"export A={CANARY}\npython t.py\n")
        (folder / name).chmod(0o600)
    monkeypatch.setenv("PLANNER_CANARY", CANARY)
    return folder


def test_hostile_tarballs_are_refused_soon() -> None:
    about = about_body("application/x-tar", '{"command": "bash t.py"}')

    refused = refusals(hostile_tarballs(COUNT), lambda content: read_job_or_program(content, about))

    assert refused > COUNT * 0.9


def test_hostile_launch_lines_are_refused_soon_and_read_nothing_of_the_service(shared: Path) -> None:
    about = about_body("application/json", folders=[str(shared.parent)])

    def read(launch: HostileLaunch) -> object:
        for name, text in launch.files.items():
            (shared / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        return read_job_or_program(as_body(launch, str(shared)), about)

    refused = refusals([*spies(), *hostile_launches(COUNT)], read)

    assert refused > COUNT * 0.5


def spies() -> Iterable[HostileLaunch]:
    """What would show the file, or the variable."""
    yield HostileLaunch("bash secret.sh")
    yield HostileLaunch("sbatch secret.sh")
    yield HostileLaunch("accelerate launch --config_file secret.yaml t.py")
    yield HostileLaunch("ray job submit --runtime-env secret.yaml -- python t.py")
    yield HostileLaunch("bash run.sh", {"run.sh": "export A=$PLANNER_CANARY\npython t.py $PLANNER_CANARY"})
    yield HostileLaunch("bash -c 'python t.py ${PLANNER_CANARY:-x}'")


def test_hostile_answers_of_programs_are_refused_soon() -> None:
    refused = refusals(hostile_answers(COUNT), read_answer)

    assert refused > COUNT * 0.6


def read_answer(answer: Answer) -> RankRun:
    if "fault" in answer.parts:  # as run_rank says it of a walled program
        raise ProgramError("a fault")
    return rank_process._read_result(replace(answer, is_foreign=True), USUAL_LIMITS, ORDER)


def test_a_program_chooses_no_status_of_its_request() -> None:
    fields = {"problem": "x", "allowed": "", "remedy": "", "place": "", "status": 204, "headers": {"A": "b"}}
    said = json.dumps({"kinds": ["planner.service.http.problems:RequestError"], "fields": fields}).encode()

    with pytest.raises(ProgramError, match="ended its process"):
        rank_process._read_result(Answer(parts={PROBLEM: said}, exit_code=1, is_foreign=True), USUAL_LIMITS, ORDER)


def test_an_honest_answer_is_taken_and_a_real_tarball_too() -> None:
    about = about_body("application/gzip", '{"command": "bash run.sh"}')

    assert rank_process._read_result(Answer(parts=PARTS), USUAL_LIMITS, ORDER) == HONEST
    assert read_job_or_program(packed({"./run.sh": b"python t.py"}), about).line.program == "t.py"


def refusals(sent: Iterable[Any], read: Callable[[Any], object]) -> int:
    """How many were refused; each soon, with a problem of a few KiB that is not a fault of planner, and without the
    canary in what comes of it."""
    refused = 0
    before = resident_bytes()
    for each in sent:
        began = time.thread_time()
        try:
            said = repr(read(each))
        except PlannerError as error:
            answer = problem(error)
            assert answer.status_code < 500, repr(each)[:500]
            assert len(answer.body) <= MOST_ANSWER
            said = bytes(answer.body).decode()
            refused += 1
        assert not takes_too_long(time.thread_time() - began, MOST_SECONDS), repr(each)[:500]
        assert CANARY not in said, repr(each)[:500]
    assert resident_bytes() - before < MOST_GROWTH
    assert os.environ.get("A") is None
    return refused


def resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

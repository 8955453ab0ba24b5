"""A child is fresh, does one thing, and ends with all that it started; what it takes is bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from child_programs import DerivedError
from runtime_children import all_end, task, wait_for
from stopped_clock import LimitClock

from planner.admission.kubernetes_api import ApiError
from planner.errors import SpecError
from planner.runtime import messages, running
from planner.runtime.control_group import ControlGroup
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import FAULT, PROBLEM, Answer
from planner.runtime.overlay import OverlayError
from planner.runtime.running import StoppedError
from planner.service.errors import BusyError, ProgramCrashedError
from planner.service.http.problems import RequestError
from planner.tracing.program.rank_process import CrashedError
from planner.units import MIB

LIMITS = Limits(seconds=600, memory_bytes=1024 * MIB, tasks=40, answer_bytes=8 * MIB)


@pytest.fixture(params=["spawned", "forked"])
def server(request: pytest.FixtureRequest, at_hand: Path) -> object:  # noqa: ARG001
    """None for a fresh interpreter, or a server that forks."""
    if request.param == "spawned":
        yield None
        return
    found = ForkServer("planner.runtime.limits:Limits")
    yield found
    found.close()


def run(server: ForkServer | None, function: str, argument: object = None, **limits: object) -> Answer:
    return running.run(task(function, argument), dataclasses.replace(LIMITS, **limits), server=server)


def test_it_answers_in_parts_and_what_it_prints_is_none(server: ForkServer | None) -> None:
    assert run(server, "echoes", {"a": 1}) == Answer(
        parts={"first": b"1", "second": b"{'a': 1}"}, last_lines=("what a program prints is not an answer",)
    )


@pytest.mark.parametrize("ending", ["returns", "ends its process", "takes too long"])
def test_its_temporary_folders_are_gone_with_it_however_it_ends(
    server: ForkServer | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    folders, link = tmp_path / "folders", tmp_path / "made"
    folders.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    if ending == "takes too long":
        monkeypatch.setattr(running, "time", LimitClock(link.is_symlink))
    run(server, "makes_a_temporary_folder", (ending, str(link)))

    assert link.readlink().is_relative_to(folders)
    assert list(folders.iterdir()) == []


def test_what_is_wrong_with_its_input_comes_back_as_the_error_that_it_is(server: ForkServer | None) -> None:
    answer = run(server, "refuses", "it is\ud800wrong")

    error = messages.error_of(answer)
    assert isinstance(error, SpecError)
    assert (error.problem, error.allowed, error.remedy, error.place) == (
        "it is\ud800wrong", "something else", "change it", "there",
    )  # fmt: skip


def test_an_error_comes_back_with_its_class_and_fields_wherever_that_is_defined(
    server: ForkServer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = run(server, "refuses_by_its_own_error", 7)

    error = messages.error_of(answer)
    assert isinstance(error, DerivedError)
    assert (error.problem, error.place, error.steps) == ("it is wrong", "there", 7)
    monkeypatch.delitem(sys.modules, DerivedError.__module__)  # as where nobody has loaded it
    assert type(messages.error_of(answer)) is SpecError


@pytest.mark.parametrize(
    "error",
    [
        DerivedError("it is wrong", 7, remedy="change it"),
        SpecError("x" * 5000, place="y" * 5000),
        RequestError(413, "too large", headers={"Connection": "close"}),
        ApiError(409, "changed meanwhile"),
        CrashedError("it ended", "Traceback", place="train.py:2"),
        ProgramCrashedError("it ended", "Traceback"),
        BusyError("later", retry_after_seconds=9),
        OverlayError("no namespaces", allowed="Linux"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_after_it_was_pickled(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_fault_comes_back_with_its_place(server: ForkServer | None) -> None:
    answer = run(server, "breaks")

    assert answer.parts[FAULT].endswith(b"LookupError: a fault\n\n")  # without torch's frames of C++
    assert messages.fault_line(answer) == "LookupError: a fault"
    assert messages.error_of(answer) is None


def test_one_that_exits_has_not_answered(server: ForkServer | None) -> None:
    assert messages.ending(run(server, "exits", 0)) == "exit code 0: its last words"
    assert messages.ending(run(server, "aborts")) == "signal SIGABRT: without a word"


@pytest.mark.parametrize(
    ("function", "argument", "limit"),
    [
        ("eats", 2000, Limit.MEMORY),
        ("fills_a_memory_file", 2000, Limit.MEMORY),
        ("starts_threads", 100, Limit.TASKS),
        ("forks", 100, Limit.TASKS),
        ("answers_much", 100, Limit.ANSWER),
    ],
)
def test_what_it_takes_is_bounded(server: ForkServer | None, function: str, argument: int, limit: Limit) -> None:
    exceeded = run(server, function, argument).exceeded

    assert isinstance(exceeded, LimitExceededError)
    assert exceeded.limit is limit


def test_pages_that_its_forks_share_are_taken_once(server: ForkServer | None) -> None:
    assert run(server, "shares", 300).parts == {"part": b"x"}


def test_at_its_time_it_is_ended_with_all_that_it_started(
    server: ForkServer | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "time", LimitClock((tmp_path / "started").exists))
    exceeded = run(server, "sleeps", str(tmp_path)).exceeded

    assert isinstance(exceeded, LimitExceededError)
    assert exceeded.limit is Limit.SECONDS
    processes = [int(each) for each in (tmp_path / "started").read_text().split()]
    assert len(processes) == 3
    assert all_end(processes)


def test_one_that_nobody_wants_any_more_is_ended(server: ForkServer | None, tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (wait_for(tmp_path / "started"), stop.set()), daemon=True).start()

    answer = running.run(task("sleeps", str(tmp_path)), LIMITS, server=server, stopped=stop.is_set)

    assert isinstance(answer.exceeded, StoppedError)
    assert all_end([int(each) for each in (tmp_path / "started").read_text().split()])


def test_what_it_started_before_it_was_in_its_control_group_is_ended_too(
    server: ForkServer | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ControlGroup.add

    def add_late(group: ControlGroup, pid: int) -> bool:
        wait_for(tmp_path / "started")
        return add(group, pid)

    monkeypatch.setattr(ControlGroup, "add", add_late)
    answer = running.run(task("sleeps", str(tmp_path)), LIMITS, server=server, stopped=(tmp_path / "started").exists)

    assert isinstance(answer.exceeded, StoppedError)
    assert all_end([int(each) for each in (tmp_path / "started").read_text().split()])


def test_bytes_that_are_no_answer_are_known_for_it(server: ForkServer | None) -> None:
    answer = run(server, "writes_beside_its_answer", '{"trace": 1}' + "[" * 1_000_000)

    assert (answer.whole, answer.parts, answer.exit_code) == (False, {}, 0)


def test_a_server_that_was_killed_takes_its_children_along_and_is_started_anew(at_hand: Path, tmp_path: Path) -> None:  # noqa: ARG001
    server = ForkServer("planner.runtime.limits:Limits")
    server.start()

    def kills() -> None:
        wait_for(tmp_path / "started")
        os.kill(server.pid, signal.SIGKILL)

    threading.Thread(target=kills, daemon=True).start()
    answer = run(server, "sleeps", str(tmp_path))

    assert answer.exit_code == -signal.SIGKILL
    assert all_end([int((tmp_path / "started").read_text().split()[0])])
    assert run(server, "echoes").parts["first"] == b"1"
    server.close()


def test_several_threads_have_children_of_one_server_at_a_time(at_hand: Path) -> None:  # noqa: ARG001
    server = ForkServer("planner.runtime.limits:Limits")
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(run(server, "echoes", n).parts["second"])) for n in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    server.close()

    assert sorted(found) == [str(n).encode() for n in range(8)]


@pytest.mark.parametrize("forked", [False, True])
def test_when_its_owner_is_killed_nothing_stays(at_hand: Path, tmp_path: Path, forked: bool) -> None:  # noqa: ARG001
    program = (
        "import sys; from planner.runtime import running; from planner.runtime.fork_server import ForkServer\n"
        "from planner.runtime.messages import Task\n"
        f"server = ForkServer('planner.runtime.limits:Limits') if {forked} else None\n"
        "running.run(Task('child_programs:sleeps', sys.argv[1]), server=server)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], start_new_session=True)
    child, *others = map(int, wait_for(tmp_path / "started").split())
    owner.kill()
    owner.wait()

    assert all_end([child])
    for each in others:  # what it had started is its own affair where no walls stand
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def test_an_error_that_a_program_made_up_is_cut_and_of_a_known_kind() -> None:
    kinds = ["os:system", "os:_Environ", "planner.errors:SpecError"]
    said = {"problem": "x" * 100_000, "allowed": "", "remedy": "", "place": ""}

    error = messages.error_of(reported(kinds=kinds, fields={**said, "status": 200}))
    assert (type(error), vars(error)) == (SpecError, {**said, "problem": "x" * 8000})
    for other in (b"[" * 500_000, b"{}", b'{"kinds": 1}', b"\xff", b"null"):
        assert messages.error_of(Answer(parts={PROBLEM: other})) is None
    for kinds, fields in (
        (["os:system"], said),
        ([], said),
        ([["planner.errors:SpecError"]], said),
        (["planner.errors:SpecError"], {**said, "problem": []}),
        (["planner.errors:SpecError"], {**said, "more": 1}),
        ([f"{DerivedError.__module__}:DerivedError"], said),
        (["planner:SpecError"], said),
    ):
        assert messages.error_of(reported(kinds=kinds, fields=fields)) is None


def reported(**document: object) -> Answer:
    return Answer(parts={PROBLEM: json.dumps(document).encode()})

"""A user's code runs behind walls, as root and as an ordinary user: it reaches nothing, and takes what is allowed."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import without_user_namespaces
from ordinary_user import ROOT, USER, as_user
from runtime_children import task

from planner.errors import SpecError
from planner.job.code_rules import CodeRules
from planner.job.schema import Cluster, Gpu, Input, Job, Model, Train
from planner.runtime import process_tree, running, walls
from planner.runtime.control_group import ControlGroup
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import Answer, Task, exceeded_limit
from planner.runtime.process_tree import Usage
from planner.runtime.user_cache import user_cache
from planner.runtime.walls import Walls, WallsError
from planner.tracing.isolated import Isolation, trace_isolated
from planner.units import GIB, MIB

LIMITS = Limits(seconds=600, memory_bytes=GIB, tasks=64, answer_bytes=8 * MIB)
ASKED = """
import pickle, sys
sys.path.append(sys.argv[1])
from planner.runtime import process_tree, running
from planner.runtime.control_group import ControlGroup
request = pickle.load(sys.stdin.buffer)
if not request.pop("watched", True):
    process_tree.usage = lambda *_, **__: process_tree.Usage()
if not request.pop("grouped", True):
    ControlGroup.create = lambda *_: None
asks_weakness = request.pop("asks_weakness", False)
answer = running.run(**request)
sys.stdout.buffer.write(pickle.dumps((answer, request["walls"].weakness()) if asks_weakness else answer))
"""


def run_as_root(asked: Task, limits: Limits, folder: Path, *, watched: bool = True) -> Answer:
    """Not `watched`: by the limits of the child's own process alone."""
    walls = Walls(readable=(str(folder),), as_root=True)
    with pytest.MonkeyPatch.context() as patch:
        if not watched:
            patch.setattr(process_tree, "usage", lambda *_, **__: Usage())
            patch.setattr(ControlGroup, "create", lambda *_: None)
        return running.run(asked, limits, walls=walls, environment={"PYTHONPATH": str(folder)})


def run_as_user(asked: Task, limits: Limits, folder: Path, *, watched: bool = True) -> Answer:
    """From a process that is nobody of importance, has no control group, and may read what an interpreter needs."""
    request = {
        "task": asked, "limits": limits, "walls": Walls(readable=(str(folder),)),
        "environment": {"PYTHONPATH": str(folder)}, "watched": watched,
    }  # fmt: skip
    return asked_as_user(request, folder)


def asked_as_user(request: dict[str, Any], folder: Path) -> Answer:
    return asked_from(as_user(folder), request)


def asked_from(front: list[str], request: dict[str, Any]) -> Any:
    ended = subprocess.run(
        [*front, sys.executable, "-P", "-c", ASKED, str(ROOT)],
        input=pickle.dumps(request), capture_output=True, check=False, timeout=900,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr.decode()
    return pickle.loads(ended.stdout)


@pytest.fixture
def kept_trace() -> Iterator[Path]:
    """A file beside the native libraries, which code behind walls runs on, that everybody might read."""
    path = user_cache() / "traces" / "test_code_behind_walls.trace"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o644)
    yield path
    path.unlink()


WHO = pytest.mark.parametrize("run", [run_as_root, run_as_user], ids=["root", "user"])


@WHO
def test_it_reaches_nothing_outside(
    run: Any, programs: Path, kept_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_DATABASE", "postgresql://planner:secret@db/planner")
    reads = ["/etc/shadow", "/etc/passwd", "/root/.profile", __file__, str(kept_trace)]
    package = str(Path(running.__file__).with_name("x"))
    writes = ["/usr/x", "/x", "/etc/x", "/dev/x", package, "/proc/sys/kernel/core_pattern", "/proc/1/oom_score_adj"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = {"port": server.getsockname()[1], "reads": reads, "writes": writes, "process": os.getpid()}
        answer = run(task("tries", asked), LIMITS, programs)

    found = json.loads(answer.parts["found"])
    init = found.pop("environment of its init")
    assert "secret" not in init
    assert "PLANNER" not in init
    assert found.pop("becomes root") in ("PermissionError", "OSError")  # there is no root in a user namespace
    written = found.pop("writes")
    assert set(written.values()) <= {"OSError", "PermissionError", "FileNotFoundError"}
    assert found == {
        "user": 65534,
        "environment": [
            "HF_HUB_OFFLINE", "HOME", "LANG", "OMP_NUM_THREADS", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH",
            "XDG_CACHE_HOME",
        ],
        "processes": True,
        "connects": "ConnectionRefusedError",
        "listens to the kernel": "OSError",
        "reads": dict.fromkeys(reads, "FileNotFoundError"),
        "kernel settings": [],
        "signals its parent": "ProcessLookupError",
        "makes a namespace": "PermissionError",
        "mounts": "PermissionError",
        "traces its init": "PermissionError",
        "changes its root": "PermissionError",
        "fills its disk": "OSError",
    }  # fmt: skip


@WHO
@pytest.mark.parametrize(
    ("function", "argument", "limit"),
    [
        ("answers_much", 100, Limit.ANSWER),
        ("sleeps", "/tmp", Limit.SECONDS),
        ("eats", 4000, Limit.MEMORY),
        ("starts_threads", 200, Limit.TASKS),  # of 8 MiB each: less than the memory
        ("forks", 200, Limit.TASKS),
    ],
)
def test_what_it_takes_is_bounded(run: Any, programs: Path, function: str, argument: object, limit: Limit) -> None:
    limits = LIMITS if limit is not Limit.SECONDS else Limits(seconds=5)
    exceeded = exceeded_limit(run(task(function, argument), limits, programs), limits)

    assert exceeded is not None
    assert exceeded.limit is limit


@WHO
def test_the_kernel_counts_its_tasks_without_the_watcher(run: Any, programs: Path) -> None:
    answer = run(task("forks_until_refused", 500), LIMITS, programs, watched=False)

    assert json.loads(answer.parts["found"]) <= LIMITS.tasks + 16
    exceeded = exceeded_limit(answer, LIMITS)
    assert exceeded is not None
    assert exceeded.limit is Limit.TASKS


@WHO
@pytest.mark.parametrize(("function", "argument"), [("fills_page_tables", 4096), ("hides_sockets", 1000)])
def test_memory_of_the_kernel_is_bounded_too(run: Any, programs: Path, function: str, argument: int) -> None:
    limits = Limits(seconds=600, memory_bytes=128 * MIB, tasks=64)

    exceeded = run(task(function, argument), limits, programs).exceeded

    assert isinstance(exceeded, LimitExceededError)
    assert exceeded.limit is Limit.MEMORY


def test_a_control_group_bounds_memory_without_the_watcher(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(seconds=600, memory_bytes=128 * MIB, tasks=64)
    if ControlGroup.can_be_made():  # else the watcher is what there is
        monkeypatch.setattr(process_tree, "usage", lambda *_, **__: Usage())

    exceeded = run_as_root(task("fills_page_tables", 4096), limits, programs).exceeded

    assert isinstance(exceeded, LimitExceededError)
    assert exceeded.limit is Limit.MEMORY


@WHO
def test_it_gets_no_memory_that_no_process_shows(run: Any, programs: Path) -> None:
    answer = run(task("asks_for_memory_that_nothing_shows"), LIMITS, programs)

    assert json.loads(answer.parts["found"]) == {
        "socket grows": False, "pipe": "PermissionError", "zeros": "OSError", "shared": "PermissionError",
        "pages in a pipe": "PermissionError", "private": "given",
    }  # fmt: skip


@WHO
def test_memory_beyond_its_limit_is_not_given_at_all(run: Any, programs: Path) -> None:
    large = run(task("asks_for_one_large_block", 4), LIMITS, programs)
    memory_file = run(task("fills_a_memory_file", 3000), LIMITS, programs)

    assert large.parts == {"refused": b"no memory"}
    assert memory_file.parts == {"refused": b"PermissionError"}


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "user"])
def test_its_own_variables_and_folder_reach_nothing_outside(is_root: bool, programs: Path) -> None:
    own = {"PYTHONPATH": str(programs), "LD_PRELOAD": "/own.so"}
    behind = Walls(overlaid=str(programs), variables=own, as_root=is_root)
    asked = {"task": task("writes_beside_itself", str(programs)), "limits": LIMITS, "walls": behind}

    answer = running.run(**asked) if is_root else asked_as_user(asked, programs)

    assert "found" in answer.parts, answer.last_lines
    assert json.loads(answer.parts["found"]) == {
        "files": ["child_programs.py", "new.txt"], "own variable": "/own.so", "init has it": False,
    }  # fmt: skip
    assert [path.name for path in programs.iterdir()] == ["child_programs.py"]


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "user"])
def test_of_its_own_folder_it_reads_what_everybody_may(is_root: bool, programs: Path) -> None:
    owner = 0 if is_root else USER  # as whom the walls are stood up
    for path, mode in {"a.txt": 0o644, "b.txt": 0o600, "open/c.txt": 0o640, "closed/d.txt": 0o644}.items():
        (programs / path).parent.mkdir(exist_ok=True)
        (programs / path).write_text(f"content of {path}")
        (programs / path).chmod(mode)
        os.chown(programs / path, owner, owner)
    (programs / "closed").chmod(0o700)
    os.chown(programs / "closed", owner, owner)
    behind = Walls(overlaid=str(programs), variables={"PYTHONPATH": str(programs)}, as_root=is_root)
    asked = {"task": task("reads_texts_below", str(programs)), "limits": LIMITS, "walls": behind}

    answer = running.run(**asked) if is_root else asked_as_user(asked, programs)

    assert "found" in answer.parts, answer.last_lines
    assert json.loads(answer.parts["found"]) == ["content of a.txt"]


def test_a_folder_with_too_many_closed_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(257):
        (tmp_path / str(number)).touch(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: USER)

    with pytest.raises(WallsError, match="more than 256 files and folders that not everybody may read"):
        list(walls._list_closed(str(tmp_path)))


@WHO
def test_its_standard_input_is_empty_and_no_file_that_it_may_write(run: Any, programs: Path) -> None:
    answer = run(task("writes_into_its_input", "x" * 10_000), LIMITS, programs)

    assert json.loads(answer.parts["found"]) == {"read": 0}


def test_root_runs_no_code_unless_it_is_meant(programs: Path) -> None:
    with pytest.raises(WallsError, match="the service runs as root"):
        running.run(task("echoes"), LIMITS, walls=Walls(readable=(str(programs),)))


@pytest.mark.parametrize("grouped", [True, False])
def test_where_nobody_may_make_user_namespaces_root_runs_code_and_says_what_is_not_bounded(
    grouped: bool, programs: Path
) -> None:
    request = {
        "task": task("forks", 200), "limits": LIMITS, "walls": Walls(readable=(str(programs),), as_root=True),
        "environment": {"PYTHONPATH": str(programs)}, "grouped": grouped, "asks_weakness": True,
    }  # fmt: skip

    answer, weakness = asked_from([sys.executable, without_user_namespaces.__file__], request)

    assert answer.exceeded is not None, answer
    assert answer.exceeded.limit is Limit.TASKS
    if grouped and ControlGroup.can_be_made():
        assert weakness == ""
    else:
        assert "are only looked at, not bounded by the kernel: bwrap: Creating new namespace failed" in weakness


@pytest.mark.parametrize("missing", ["bwrap", "prlimit", "setpriv"])
def test_where_there_are_no_walls_code_is_refused(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in {"bwrap", "prlimit", "setpriv"} - {missing}:
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    walls._try_here.cache_clear()
    try:
        with pytest.raises(WallsError, match=f"code of users is not run here: not installed: {missing}"):
            running.run(task("echoes"), LIMITS, walls=Walls(as_root=True))
    finally:
        walls._try_here.cache_clear()


def test_a_folder_that_nobody_may_read_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    with pytest.raises(WallsError, match="is not readable by everybody"):
        running.run(task("echoes"), LIMITS, walls=Walls(readable=(str(tmp_path),), as_root=True))


FACTORIES = """
import os
from torch import nn

def mlp():
    return nn.Linear(16, 4)

def eats():
    return bytearray(b"x") * (20 * 2**30)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(FACTORIES)
    tmp_path.chmod(0o755)
    return tmp_path


def factory_job(folder: Path, name: str) -> Job:
    model = Model(factory=f"shop:{name}", factory_path=str(folder))
    inputs = {"x": Input(shape=(16,)), "labels": Input(shape=(), dtype="int64", maximum=4)}
    return Job(model=model, train=Train(inputs=inputs), cluster=Cluster(gpu=Gpu(total_bytes=GIB, arch="sm_90")))


def isolation(folder: Path) -> Isolation:
    limits = Limits(seconds=600, memory_bytes=2 * GIB)
    return Isolation(
        limits=limits, walls=Walls(readable=(str(folder),), as_root=True), code=CodeRules(("shop",), str(folder))
    )


def test_a_factory_is_traced_there_as_anywhere(shop: Path) -> None:
    there = trace_isolated(factory_job(shop, "mlp"), isolation=isolation(shop))

    assert sum(getattr(event, "requested_bytes", 0) == 16 * 4 * 4 for event in there.events) > 0


def test_a_callable_that_an_allowed_module_has_only_imported_is_refused(shop: Path) -> None:
    with pytest.raises(SpecError, match=r"the factory shop:os\.system is defined in posix"):
        trace_isolated(factory_job(shop, "os.system"), isolation=isolation(shop))


def test_a_factory_that_takes_twenty_gibibytes_is_told_its_limit(shop: Path) -> None:
    with pytest.raises(SpecError) as caught:
        trace_isolated(factory_job(shop, "eats"), isolation=isolation(shop))

    assert caught.value.problem == "shop:eats takes more than 2.00 GiB of the host's memory"

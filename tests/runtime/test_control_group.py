"""A control group for a child: asked for by files, as the kernel has them, and left alone where it is not for us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.runtime.control_group import ControlGroup
from planner.runtime.limits import UNLIMITED, Limit, Limits

LIMITS = Limits(seconds=5, memory_bytes=2**30, tasks=64)
VERSION_2 = "0::/service\n"
VERSION_1 = "9:pids:/jobs\n5:cpu,cpuacct:/\n4:memory:/service\n0::/service\n"


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """The group of this process in version 2, which may make others below it."""
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    (folder / "cgroup.subtree_control").write_text("")
    return folder


@pytest.fixture
def hierarchies(tmp_path: Path) -> Path:
    """Where version 1 is mounted, with the groups of this process."""
    for folder in ("pids/jobs", "memory/service"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return tmp_path


def contents(group: ControlGroup) -> dict[str, str]:
    return {path.name: path.read_text() for folder in group.folders for path in folder.iterdir()}


def test_a_group_has_the_limits_and_the_process(parent: Path) -> None:
    group = ControlGroup.create(LIMITS, parent.parent, VERSION_2)

    assert group is not None
    assert [folder.parent for folder in group.folders] == [parent]
    assert group.add(4711)
    assert contents(group) == {
        "memory.max": str(2**30), "pids.max": "64", "memory.swap.max": "0", "memory.oom.group": "1",
        "cgroup.procs": "4711",
    }  # fmt: skip
    assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_in_version_1_a_group_is_one_folder_for_each_controller(hierarchies: Path) -> None:
    group = ControlGroup.create(LIMITS, hierarchies, VERSION_1)

    assert group is not None
    assert [folder.parent for folder in group.folders] == [hierarchies / "pids/jobs", hierarchies / "memory/service"]
    assert group.add(4711)
    assert {folder.parts[-3]: contents(ControlGroup((folder,))) for folder in group.folders} == {
        "pids": {"pids.max": "64", "cgroup.procs": "4711"},
        "memory": {
            "memory.limit_in_bytes": str(2**30), "memory.memsw.limit_in_bytes": str(2**30),
            "memory.kmem.tcp.limit_in_bytes": str(2**30), "cgroup.procs": "4711",
        },
    }  # fmt: skip


def test_controllers_that_are_there_are_not_asked_for_again(parent: Path) -> None:
    (parent / "cgroup.subtree_control").write_text("memory pids")
    (parent / "cgroup.subtree_control").chmod(0o400)

    assert ControlGroup.create(LIMITS, parent.parent, VERSION_2) is not None
    assert (parent / "cgroup.subtree_control").read_text() == "memory pids"


@pytest.mark.parametrize("delegated", [True, False])
def test_a_group_is_made_beside_the_service_where_that_was_delegated(parent: Path, delegated: bool) -> None:
    own = parent / "subgroup"  # DelegateSubgroup= of systemd: it has the service's processes, and no controllers
    own.mkdir()
    (own / "cgroup.controllers").write_text("memory pids")
    (own / "cgroup.subtree_control").mkdir()  # cannot be written
    os.setxattr(parent, "user.delegate", b"1" if delegated else b"0")

    group = ControlGroup.create(LIMITS, parent.parent, "0::/service/subgroup\n")

    assert [folder.parent for folder in (group.folders if group is not None else ())] == [parent] * delegated


@pytest.mark.parametrize("controllers", ["", "cpu memory", "pids"])
def test_without_a_controller_for_each_limit_there_is_none(parent: Path, controllers: str) -> None:
    (parent / "cgroup.controllers").write_text(controllers)

    assert ControlGroup.create(LIMITS, parent.parent, VERSION_2) is None
    assert [each.name for each in parent.iterdir() if each.is_dir()] == []


@pytest.mark.parametrize("missing", ["memory/service", "pids/jobs"])
def test_without_a_hierarchy_for_each_limit_there_is_none(hierarchies: Path, missing: str) -> None:
    (hierarchies / missing / "cgroup.procs").unlink()

    assert ControlGroup.create(LIMITS, hierarchies, VERSION_1) is None
    assert [path.name for path in hierarchies.rglob("planner-*")] == []


def test_without_limits_or_without_cgroups_there_is_none(parent: Path, tmp_path: Path) -> None:
    assert ControlGroup.create(UNLIMITED, parent.parent, VERSION_2) is None
    assert ControlGroup.create(LIMITS, tmp_path, "0::/nowhere\n") is None


def test_a_command_starts_in_each_of_its_folders(tmp_path: Path) -> None:
    group = ControlGroup((tmp_path / "pids", tmp_path / "memory"))
    for folder in group.folders:
        folder.mkdir()

    ended = subprocess.run([*group.enter(), "echo", "--", "a b"], capture_output=True, text=True, check=True)

    assert ended.stdout == "-- a b\n"
    assert [(folder / "cgroup.procs").read_text() for folder in group.folders] == ["0\n", "0\n"]  # 0: the writer


def test_a_command_starts_where_it_may_not_enter(tmp_path: Path) -> None:
    gone = ControlGroup((tmp_path / "gone",))

    ended = subprocess.run([*gone.enter(), "echo", "started"], capture_output=True, text=True, check=True)

    assert (ended.stdout, ended.stderr) == ("started\n", "")


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("memory.events", "low 0\noom 1\noom_kill 2\n", Limit.MEMORY),
        ("memory.events", "oom 3\noom_kill 0\n", None),
        ("memory.events", "", None),
        ("memory.events", "oom_kill many\n", None),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", Limit.MEMORY),
        ("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0\n", None),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),  # Linux before 4.13
        ("pids.events", "max 3\n", Limit.TASKS),
        ("pids.events", "max 0\n", None),
    ],
)
def test_the_kernel_says_which_limit_was_exceeded(parent: Path, file: str, text: str, expected: Limit | None) -> None:
    (parent / file).write_text(text)

    assert ControlGroup((parent,)).exceeded() is expected


def test_a_group_that_went_away_says_and_does_nothing(tmp_path: Path) -> None:
    group = ControlGroup((tmp_path / "gone",))

    group.kill()

    assert group.exceeded() is None
    assert not group.add(os.getpid())


def test_empty_groups_of_a_killed_service_are_removed(parent: Path) -> None:
    for name, hours in {"planner-old": 2, "planner-new": 0, "another": 2}.items():
        (parent / name).mkdir()
        os.utime(parent / name, times=(time.time() - hours * 3600,) * 2)

    group = ControlGroup.create(LIMITS, parent.parent, VERSION_2)

    assert group is not None
    assert {each.name for each in parent.iterdir() if each.is_dir()} == {
        "planner-new", "another", group.folders[0].name,
    }  # fmt: skip


def test_all_of_its_processes_end_and_start_no_others(tmp_path: Path) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    processes = [subprocess.Popen(sleeps) for _ in range(2)]
    group, below = tmp_path / "planner-1", tmp_path / "planner-1" / "planner-2"
    below.mkdir(parents=True)
    (group / "pids.max").write_text("64")
    for folder, process in zip((group, below), processes, strict=True):
        (folder / "cgroup.procs").write_text(f"0\n{process.pid}\n")  # 0: one of another namespace

    ControlGroup((group,)).kill()

    assert [process.wait(30) for process in processes] == [-signal.SIGKILL] * 2
    assert (group / "pids.max").read_text() == "0"

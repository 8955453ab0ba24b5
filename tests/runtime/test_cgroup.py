"""A control group for a child: asked for by files, as the kernel has them, and left alone where it is not for us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.runtime.limits import UNLIMITED, Limits
from planner.runtime.process_tree import Cgroup

LIMITS = Limits(seconds=5, memory_bytes=2**30, tasks=64)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """The group of this process, which may make others below it."""
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    (folder / "cgroup.subtree_control").write_text("")
    return folder


def contents(group: Cgroup) -> dict[str, str]:
    return {path.name: path.read_text() for path in group.folder.iterdir()}


def test_a_group_has_the_limits_and_the_process(parent: Path) -> None:
    group = Cgroup.create(LIMITS, parent.parent, "/service")

    assert group is not None
    assert group.folder.parent == parent
    assert group.add(4711)
    assert contents(group) == {
        "memory.max": str(2**30), "pids.max": "64", "memory.swap.max": "0", "memory.oom.group": "1",
        "cgroup.procs": "4711",
    }  # fmt: skip
    assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_controllers_that_are_there_are_not_asked_for_again(parent: Path) -> None:
    (parent / "cgroup.subtree_control").write_text("memory pids")
    (parent / "cgroup.subtree_control").chmod(0o400)

    assert Cgroup.create(LIMITS, parent.parent, "service") is not None
    assert (parent / "cgroup.subtree_control").read_text() == "memory pids"


@pytest.mark.parametrize("controllers", ["", "cpu memory", "pids"])
def test_without_a_controller_for_each_limit_there_is_none(parent: Path, controllers: str) -> None:
    (parent / "cgroup.controllers").write_text(controllers)

    assert Cgroup.create(LIMITS, parent.parent, "service") is None
    assert [each.name for each in parent.iterdir() if each.is_dir()] == []


def test_without_limits_or_without_cgroups_there_is_none(parent: Path, tmp_path: Path) -> None:
    assert Cgroup.create(UNLIMITED, parent.parent, "service") is None
    assert Cgroup.create(LIMITS, tmp_path, "nowhere") is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [("low 0\noom 1\noom_kill 2\n", True), ("oom 3\noom_kill 0\n", False), ("", False), ("oom_kill many\n", False)],
)
def test_the_kernel_says_whether_it_ended_a_process_for_its_memory(parent: Path, events: str, expected: bool) -> None:
    group = Cgroup(parent)
    (parent / "memory.events").write_text(events)

    assert group.ran_out_of_memory() is expected


def test_a_group_that_went_away_says_and_does_nothing(tmp_path: Path) -> None:
    group = Cgroup(tmp_path / "gone")

    group.kill()

    assert not group.ran_out_of_memory()
    assert not group.add(os.getpid())


def test_the_kernel_is_asked_to_end_all_of_its_processes(parent: Path) -> None:
    folder = parent / "planner-1"
    folder.mkdir()

    Cgroup(folder).kill()

    assert (folder / "cgroup.kill").read_text() == "1"

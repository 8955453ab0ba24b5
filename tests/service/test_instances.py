"""What a service that was killed left behind is swept by the next start; what a living one has is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.service import local_ray
from planner.service.local_ray import LOCK, VARIABLE, instance_folder, sweep_dead_instances

PROGRAM = textwrap.dedent("""
    import os, subprocess, sys, time
    from pathlib import Path
    from planner.service import local_ray
    from planner.service.local_ray import VARIABLE, instance_folder
    local_ray._parents = lambda: [Path(sys.argv[1])]
    with instance_folder() as folder:
        sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
        by_environment = subprocess.Popen(sleeps, env={**os.environ, VARIABLE: str(folder)})
        with open(folder / "worker.out", "w") as log:
            by_output = subprocess.Popen(sleeps, stdout=log)
            by_log = subprocess.Popen(sleeps, stdout=subprocess.PIPE, pass_fds=[log.fileno()])
        with open(folder / "worker.out") as log:
            reader = subprocess.Popen(sleeps, stdin=log)
        stranger = subprocess.Popen([*sleeps, str(folder)])
        children = by_environment, by_output, by_log, reader, stranger
        print(folder, *[child.pid for child in children], flush=True)
        time.sleep(600)
""")


@pytest.fixture(autouse=True)
def parent(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of these tests lie, and are swept."""
    found = tmp_path_factory.mktemp("i")
    monkeypatch.setattr(local_ray, "_parents", lambda: [found])
    return found


@pytest.fixture
def killed(parent: Path) -> Iterator[tuple[Path, list[int]]]:
    """The folder of a service that was killed, three processes of its own, one that reads its log, and a stranger."""
    main = subprocess.Popen([sys.executable, "-c", PROGRAM, str(parent)], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    folder, *processes = main.stdout.readline().split()
    main.kill()
    main.wait()
    children = list(map(int, processes))
    yield Path(folder), children
    for child in children:
        if runs(child):
            os.kill(child, signal.SIGKILL)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def test_folder_and_processes_of_a_dead_service_are_swept(killed: tuple[Path, list[int]]) -> None:
    folder, processes = killed
    assert all(map(runs, processes))

    assert sweep_dead_instances() == [folder]
    assert not folder.exists()
    assert list(map(runs, processes)) == [False, False, False, True, True]
    assert sweep_dead_instances() == []


def test_a_service_that_runs_is_left_alone() -> None:
    with instance_folder() as folder:
        (folder / "socket").touch()

        assert sweep_dead_instances() == []
        assert (folder / "socket").exists()
    assert not folder.exists()


def test_what_is_no_service_is_left_alone(parent: Path) -> None:
    (parent / "plain").mkdir()
    (parent / "plans.txt").touch()
    (parent / "play").symlink_to(parent / "plain")

    assert sweep_dead_instances() == []
    assert {each.name for each in parent.iterdir()} == {"plain", "plans.txt", "play"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_a_folder_of_another_user_is_left_alone(killed: tuple[Path, list[int]]) -> None:
    folder, (by_environment, *_) = killed
    os.chown(folder, 65534, 65534)

    assert sweep_dead_instances() == []
    assert (folder / LOCK).exists()
    assert runs(by_environment)
    os.chown(folder, 0, 0)


def test_the_folder_leaves_room_for_the_names_of_sockets() -> None:
    with instance_folder() as folder:
        assert len(str(folder)) <= len(str(folder.parent)) + 11
    assert VARIABLE.startswith("PLANNER_")

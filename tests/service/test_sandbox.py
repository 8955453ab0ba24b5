"""A user's code runs behind walls: it finds no network, no secrets, nothing to write to, and takes what is allowed."""

from __future__ import annotations

import ast
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.service import sandbox
from planner.spec.job import Cluster, Gpu, Input, Job, Model, Train
from planner.tracing.isolated import Limits, trace_isolated
from planner.units import GIB

FACTORIES = """
import os
import socket
import time
from pathlib import Path

from torch import nn

def mlp():
    return nn.Linear(16, 4)

def tries(port, reads, writes, process):
    def told(what, *arguments):
        try:
            return what(*arguments)
        except Exception as error:
            return type(error).__name__
    def fills():
        with open("/tmp/large", "wb") as file:
            for _ in range(300):
                file.write(b"x" * 2**20)
    raise ValueError({
        "connects": told(socket.create_connection, ("127.0.0.1", port), 5),
        "reads": [told(Path(path).read_text) for path in reads],
        "writes": [told(Path(path).write_text, "x") for path in writes],
        "writes into its tmp": told(Path("/tmp/x").write_text, "x"),
        "sees others": os.path.exists(f"/proc/{process}"),
        "fills its disk": told(fills),
        "environment": sorted(os.environ),
    })

def answers_itself(text):
    for number in range(3, 20):
        try:
            os.write(number, text.encode())
        except OSError:
            pass
    os._exit(0)

def forks():
    for _ in range(5000):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)

def eats():
    return bytearray(b"x") * (20 * 2**30)
"""
GPU = Cluster(gpu=Gpu(total_bytes=GIB, arch="sm_90"))
LIMITS = Limits(seconds=60, memory_bytes=2 * GIB)

walls = pytest.mark.skipif(not sandbox.has_walls(), reason="bubblewrap does not work here")


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[..., str]:
    """What is said of a factory."""
    (tmp_path / "shop.py").write_text(FACTORIES)

    def said(name: str, **arguments: object) -> str:
        with pytest.raises(SpecError) as caught:
            trace_isolated(
                _job(tmp_path, name, **arguments),
                limits=Limits(
                    seconds=LIMITS.seconds,
                    memory_bytes=LIMITS.memory_bytes,
                    command=sandbox.command(LIMITS, str(tmp_path)),
                ),
            )
        return caught.value.problem

    return said


def _job(folder: Path, name: str, **arguments: object) -> Job:
    model = Model(factory=f"shop:{name}", factory_path=str(folder), factory_arguments=arguments)
    inputs = {"x": Input(shape=(16,)), "labels": Input(shape=(), dtype="int64", maximum=4)}
    return Job(model=model, train=Train(inputs=inputs), cluster=GPU)


def test_a_factory_is_traced_there_as_anywhere(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FACTORIES)
    job = _job(tmp_path, "mlp")

    there = trace_isolated(job, limits=Limits(command=sandbox.command(LIMITS, str(tmp_path))))

    assert sum(getattr(event, "requested_bytes", 0) == 16 * 4 * 4 for event in there.events) > 0


@walls
def test_it_reaches_nothing_of_ours(refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_DATABASE", "postgresql://planner:secret@db/planner")
    reads = ["/etc/shadow", "/etc/passwd", "/root/.profile", __file__]
    writes = ["/usr/x", "/x", "/etc/x", "/dev/x", str(Path(sandbox.__file__).with_name("x"))]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = refusal("tries", port=port, reads=reads, writes=writes, process=os.getpid())

    assert ast.literal_eval(said.removeprefix("the factory shop:tries raised ValueError: ")) == {
        "connects": "ConnectionRefusedError",
        "reads": ["FileNotFoundError"] * 4,
        "writes": ["OSError"] * 5,
        "writes into its tmp": 1,
        "sees others": False,
        "fills its disk": "OSError",
        "environment": [
            "HF_HUB_OFFLINE", "HOME", "LANG", "OMP_NUM_THREADS", "PATH", "PYTHONDONTWRITEBYTECODE", "XDG_CACHE_HOME",
        ],
    }  # fmt: skip


def test_one_that_answers_in_the_place_of_the_trace_is_not_believed(refusal: Callable[..., str]) -> None:
    said = refusal("answers_itself", text='{"events": [["f", {}]], "origins": [], "buckets": 1}')

    assert said == "shop:answers_itself ended its process with exit code 0: its answer is no trace"


def test_one_that_forks_without_end_is_ended_with_all_its_children(refusal: Callable[..., str]) -> None:
    assert refusal("forks") in (
        "shop:forks starts more than 256 processes",
        "shop:forks takes more than 2.00 GiB of the host's memory",
    )


def test_one_that_takes_twenty_gibibytes_is_ended(refusal: Callable[..., str]) -> None:
    assert refusal("eats") == "shop:eats takes more than 2.00 GiB of the host's memory"


def test_where_there_are_no_walls_the_limits_hold_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("prlimit", "setpriv", "env"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    sandbox.has_walls.cache_clear()
    try:
        command = sandbox.command(LIMITS)
    finally:
        monkeypatch.undo()
        sandbox.has_walls.cache_clear()

    assert command[:4] == ("setpriv", "--pdeathsig", "KILL", "--")
    assert "bwrap" not in command
    assert "factories run with resource limits only" in caplog.text
    (tmp_path / "shop.py").write_text(FACTORIES)
    assert trace_isolated(_job(tmp_path, "mlp"), limits=Limits(command=command)).events

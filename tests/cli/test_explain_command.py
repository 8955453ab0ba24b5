"""`planner explain`: a log, a snapshot or both, or what is wrong with them."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from runtime_children import wait_for
from torch_messages import alloc_conf

from planner import cli
from planner.events import Alloc
from planner.report.memory_viz import write_snapshot
from planner.units import GIB, MIB

Shown = pytest.CaptureFixture[str]
MESSAGE = alloc_conf(
    {"device": 0, "tried": "500.00 MiB", "total": "1.00 GiB", "free": "124.00 MiB", "allocated": "900.00 MiB",
     "unallocated": "0 bytes"}
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(f"step 246\n{MESSAGE}\n", encoding="utf-8")
    return path


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "failed.pickle"
    write_snapshot(path, [Alloc(0, 600 * MIB), Alloc(1, 300 * MIB), Alloc(2, 500 * MIB)], capacity_bytes=GIB)
    return path


def test_a_log_is_explained(log: Path, capsys: Shown) -> None:
    assert cli.main(["explain", str(log)]) == 0

    shown = capsys.readouterr().out
    assert "line 2, GPU 0: as torch 2.9 and later says it" in shown
    assert "The GPU was full of PyTorch's own tensors." in shown


def test_a_snapshot_is_explained_with_what_would_have_helped(snapshot: Path, capsys: Shown) -> None:
    assert cli.main(["explain", str(snapshot)]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    assert "no settings (as recorded): runs out, as it did" in shown
    assert "No setting of the allocator that was replayed would have" in shown


def test_both_are_one_object_of_the_contract(log: Path, snapshot: Path, capsys: Shown) -> None:
    assert cli.main(["explain", str(log), str(snapshot), "--format", "json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["cause"]) == ("planner.out_of_memory/1", "full")
    assert [each["line"] for each in found["messages"]] == [2]
    (device,) = found["snapshots"]
    assert (device["size_bytes"], device["capacity_bytes"]) == (500 * MIB, GIB)


def test_a_log_on_stdin_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MESSAGE.encode())))

    assert cli.main(["explain", "-", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "full"


def test_a_replay_of_a_failure_says_the_same(snapshot: Path, capsys: Shown) -> None:
    assert cli.main(["replay", str(snapshot)]) == 0

    assert "no settings (as recorded): runs out, as it did" in capsys.readouterr().out


def test_its_json_has_the_failure(snapshot: Path, capsys: Shown) -> None:
    assert cli.main(["replay", str(snapshot), "--format", "json"]) == 0

    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["out_of_memory"]["cause"] == "full"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.log", "step 246\n", "nothing in it says that memory ran out"),
        ("other.pickle", "no pickle", "not a pickle"),
    ],
)
def test_what_tells_of_no_failure_ends_with_2(
    name: str, content: str, said: str, tmp_path: Path, capsys: Shown
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")

    assert cli.main(["explain", str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert (shown.out, said in shown.err) == ("", True)


def test_two_logs_are_two_failures(log: Path, capsys: Shown) -> None:
    assert cli.main(["explain", str(log), str(log)]) == 2

    assert "2 logs and 0 snapshots" in capsys.readouterr().err


def test_the_service_is_told_the_words_of_a_jobs_end(log: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    told: list[tuple[str, str, object]] = []
    monkeypatch.setattr(
        "planner.admission.client.Client.bind", lambda _, system, job, body: told.append((system, job, body))
    )

    assert cli.main(["explain", str(log), "--job", "slurm/4711", "--server", "http://planner.example"]) == 0
    assert told == [("slurm", "4711", {"failure": log.read_text(encoding="utf-8")})]
    assert "full of PyTorch's own tensors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--job", "4711", "--server", "http://planner.example"], "names no job"),
        (["--job", "slurm/4711", "--server", ""], "set PLANNER_SERVER"),
    ],
)
def test_a_job_that_cannot_be_told_of_ends_with_2(options: list[str], said: str, log: Path, capsys: Shown) -> None:
    assert cli.main(["explain", str(log), *options]) == 2

    assert said in capsys.readouterr().err


def test_the_epilog_of_slurm_hands_on_what_sacct_says(tmp_path: Path) -> None:
    for name, lines in (
        ("sacct", "echo '4711.0|OUT_OF_MEMORY|0:125'"),
        ("python3", f'cd {tmp_path}; echo "$@" >part; cat >>part; mv part asked'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    script = Path(__file__).parents[2] / "deploy" / "slurm" / "epilog_out_of_memory.sh"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "4711", "PLANNER_EPILOG_SECONDS": "0"}

    subprocess.run([str(script)], env=environment, check=True, timeout=300)

    said = wait_for(tmp_path / "asked")
    assert said == "-P -m planner explain - --job slurm/4711\n4711.0|OUT_OF_MEMORY|0:125\n"

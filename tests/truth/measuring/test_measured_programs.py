"""`planner measure -- COMMAND` starts a program as it stands, and writes down what each rank took."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch_with_figures

from planner import cli
from planner.events import Phase
from planner.report.statement import (
    OutsideAllocator,
    Peak,
    Plan,
    Provenance,
    RankClassStatement,
    Verdict,
    to_json,
)
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import Levels, Measurement
from planner.truth.measuring.program import World, measure_program
from planner.truth.plan_comparison import with_measurement

MIB = 2**20
TWO_RANKS = ("torchrun", "--nproc-per-node", "2", "train.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a program runs that finds the torch with figures of its own."""
    for name, value in torch_with_figures.write_in(tmp_path).items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(program: str, *, ranks: int = 2, snapshots: Path | None = None) -> tuple[Measurement, ...]:
    Path("train.py").write_text(f"import os, sys\nrank = int(os.environ.get('RANK', 0))\n{program}\n")
    command = TWO_RANKS if ranks == 2 else (sys.executable, "train.py")
    return measure_program(command, World(size=ranks), Path(), snapshots=snapshots).measurements


def levels(allocated: int, reserved: int) -> Levels:
    return Levels(requested_bytes=allocated, allocated_bytes=allocated, active_bytes=allocated, reserved_bytes=reserved)


@pytest.mark.usefixtures("folder")
def test_each_rank_has_its_own_peaks() -> None:
    found = run("import torch\ntorch.cuda.take(10 << 20, 20 + rank << 20)\ntorch.cuda.take(1 << 20, 20 + rank << 20)")

    assert [(each.rank, each.peak, each.phases[-1].end.allocated_bytes) for each in found] == [
        (rank, levels(10 * MIB, (20 + rank) * MIB), MIB) for rank in (0, 1)
    ]
    assert [(each.exit_code, each.error, each.world_size) for each in found] == [(0, "", 2)] * 2
    assert found[0].software["torch"] == "2.9.1+cu128"
    assert (found[0].device.name, found[0].device.arch) == ("NVIDIA A100-SXM4-40GB", "sm_80")


@pytest.mark.usefixtures("folder")
def test_counters_that_a_program_sets_back_lose_nothing() -> None:
    (rank,) = run(
        "import torch\ntorch.cuda.take(9 << 20, 9 << 20)\ntorch.cuda.take(1 << 20, 2 << 20)\n"
        "torch.cuda.reset_peak_memory_stats()\nassert torch.cuda.memory_stats()['allocated_bytes.all.peak'] == 1 << 20",
        ranks=1,
    )

    assert (rank.peak.allocated_bytes, rank.peak.reserved_bytes) == (9 * MIB, 9 * MIB)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("import torch\nrank and os.kill(os.getpid(), 9)", "by a signal or os._exit"),
        ("import torch\nrank and os._exit(3)", "by a signal or os._exit"),
        ("rank and sys.exit(1)\nimport torch", "no Python of it that imported torch was seen"),
        ("import torch\nrank and sys.exit(0)", "without having used CUDA"),
    ],
)
def test_a_rank_that_left_no_figures_is_named_with_its_reason(ending: str, reason: str) -> None:
    found = run(f"{ending}\ntorch.cuda.take(1 << 20, 2 << 20)")

    first, second = found
    assert (first.rank, first.error, second.rank, second.phases) == (0, "", 1, ())
    assert reason in second.error


@pytest.mark.usefixtures("folder")
def test_an_exception_that_ended_a_rank_stands_with_its_peaks() -> None:
    (rank,) = run("import torch\ntorch.cuda.take(5 << 20, 6 << 20)\nraise MemoryError('CUDA is full')", ranks=1)

    assert (rank.ended_by, rank.peak.allocated_bytes) == ("MemoryError: CUDA is full", 5 * MIB)


def test_what_a_user_has_python_do_first_is_done(folder: Path) -> None:
    (folder / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_user = 7\n")

    found = run("import sitecustomize, torch\ntorch.cuda.take(of_the_user << 20, 8 << 20)", ranks=1)

    assert [each.peak.allocated_bytes for each in found] == [7 * MIB]


@pytest.mark.usefixtures("folder")
def test_a_program_finds_torch_without_importing_it_and_is_still_measured() -> None:
    looks = "import importlib.util\nassert importlib.util.find_spec('torch') and 'torch' not in sys.modules"

    found = run(f"{looks}\nimport torch\ntorch.cuda.take(1 << 20, 2 << 20)", ranks=1)

    assert [each.error for each in found] == [""]


@pytest.mark.usefixtures("folder")
def test_what_a_rank_starts_itself_is_not_the_rank() -> None:
    helper = "import torch; torch.cuda.take(90 << 20, 90 << 20)"
    started = f"import subprocess\nsubprocess.run([sys.executable, '-c', {helper!r}], check=True)"

    found = run(f"import torch\n{started}\ntorch.cuda.take(1 << 20, 2 << 20)")

    assert [(each.rank, each.peak.allocated_bytes) for each in found] == [(0, MIB), (1, MIB)]


def test_a_history_is_kept_for_each_rank(folder: Path) -> None:
    found = run("import torch\ntorch.cuda.take(1 << 20, 2 << 20)", snapshots=folder / "histories")

    assert [each.snapshot for each in found] == ["rank-0.pickle", "rank-1.pickle"]
    assert sorted(each.name for each in (folder / "histories").iterdir()) == ["rank-0.pickle", "rank-1.pickle"]


def test_a_command_ends_with_its_own_exit_code_and_says_what_it_says(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import sys\nprint('from the program')\nsys.exit(7)\n")

    assert cli.main(["measure", "--device", "cpu", "--", "A=1", sys.executable, "train.py"]) == 7

    said = capfd.readouterr()
    assert said.out == "from the program\n"
    assert "planner: rank 0 left no figures: no Python of it that imported torch was seen" in said.err
    assert said.err.endswith("planner: figures of 0 of 1 ranks in measurements.jsonl\n")
    assert [each.exit_code for each in measurement_lines.read(Path("measurements.jsonl"))] == [7]
    assert sorted(each.name for each in folder.iterdir()) == ["bin", "measurements.jsonl", "site", "train.py"]


def statement_of_a_run(*, ranks: int) -> Plan:
    peak = Peak(
        phase=Phase.BACKWARD, iteration=2, allocated_bytes=300 * MIB, reserved_bytes=400 * MIB,
        device_bytes=900 * MIB, interval_bytes=(800 * MIB, 1000 * MIB),
    )  # fmt: skip
    rank_class = RankClassStatement(
        representative=0, ranks=f"0-{ranks - 1}" if ranks > 1 else "0", coordinates={}, peak=peak,
        capacity_bytes=40 * 2**30, verdict=Verdict.FITS, cache_releases=0, at_peak={}, phases=(),
        outside_allocator=OutsideAllocator(cuda_context_bytes=500 * MIB), holders=(),
    )  # fmt: skip
    return Plan(
        command=TWO_RANKS, gpu="A100-SXM-40GB", nodes=1, gpus_per_node=ranks, ending="ended", iterations=3, seen={},
        unseen=(), allocator_conf="", calibrated=False, rank_classes=(rank_class,), assumptions=(), out_of_memory=(),
        provenance=Provenance(planner="1", torch="2.9.0", allocator_rules="1", catalog="1", calibration=""),
    )  # fmt: skip


@pytest.mark.usefixtures("folder")
def test_both_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    statement = statement_of_a_run(ranks=2)
    peak = statement.rank_classes[0].peak
    measured = run(
        f"rank and os._exit(0)\nimport torch\ntorch.cuda.take({peak.allocated_bytes}, {peak.reserved_bytes})"
    )
    measurement_lines.append(Path("measured.jsonl"), measured)
    Path("run.json").write_text(json.dumps(to_json(statement)))

    assert cli.main(["compare", "run.json", "measured.jsonl", "--format", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(each["name"], each["error_percent"]) for each in first["peak"]] == [("allocated", 0.0), ("reserved", 0.0)]
    assert (second["case"], second["peak"]) == ("rank 1", [])
    assert second["notes"][0].startswith("no figures: ")

    assert cli.main(["compare", "run.json", "measured.jsonl", "--rank", "0"]) == 0
    assert "allocated" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_what_cannot_stand_beside_a_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.json").write_text(json.dumps(to_json(statement_of_a_run(ranks=1))))
    measurement_lines.append(Path("none.jsonl"), run("import torch", ranks=1))
    Path("steps.jsonl").write_text("")
    Path("broken.json").write_text(json.dumps({**A_PROGRAM, "ranks": 3}, indent=2))

    said = []
    for name in ("none.jsonl", "steps.jsonl", "broken.json"):
        assert cli.main(["compare", "run.json", name]) == 2
        said.append(capsys.readouterr().err.splitlines()[0])

    assert said == [
        "none.jsonl has no measurement of a rank (rank 0: it ended without having used CUDA)",
        "steps.jsonl has no measurement of a rank",
        "a measured program lacks something: 'int' object is not iterable",
    ]


A_PROGRAM = {
    "schema": "planner.measured-program/1", "command": list(TWO_RANKS), "exit_code": 3, "date": "2026-11-01",
    "seconds": 7.5, "world_size": 2,
    "ranks": [
        {
            "rank": 1, "host": "node", "gpu": "NVIDIA A100-SXM4-40GB", "uuid": "0", "total_bytes": 40 << 30,
            "peak": {"requested_bytes": 5, "allocated_bytes": 6, "active_bytes": 6, "reserved_bytes": 9 * MIB},
            "end": {"requested_bytes": 1, "allocated_bytes": 2, "active_bytes": 2, "reserved_bytes": 4 * MIB},
            "device_bytes_at_end": 504 * MIB, "cache_releases": 2, "resets": 1, "processes": 1, "devices": 1,
            "ended_by": "", "snapshot": "", "software": {"torch": "2.9.1"}, "allocator_conf": "",
        }
    ],
    "without_figures": [{"rank": 0, "reason": "it ended without having used CUDA"}],
}  # fmt: skip


def test_what_was_written_as_one_document_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text(json.dumps(A_PROGRAM, indent=2) + "\n")

    missing, measured = measurement_lines.read(tmp_path / "measured.json")

    assert (missing.rank, missing.error, missing.exit_code) == (0, "it ended without having used CUDA", 3)
    assert (measured.rank, measured.peak.reserved_bytes, measured.outside_bytes) == (1, 9 * MIB, 500 * MIB)
    assert (measured.command, measured.device.name, measured.software) == (
        TWO_RANKS, "NVIDIA A100-SXM4-40GB", {"torch": "2.9.1"},
    )  # fmt: skip
    assert measured.memory_stats == {"num_alloc_retries": 2}


@pytest.mark.usefixtures("folder")
def test_device_bytes_are_the_reserved_peak_and_what_was_outside_at_the_end() -> None:
    (measured,) = run("import torch\ntorch.cuda.take(5 << 20, 9 << 20)\ntorch.cuda.take(0, 4 << 20)", ranks=1)
    phases = tuple(replace(each, device_bytes=504 * MIB) for each in measured.phases)

    compared = with_measurement(
        statement_of_a_run(ranks=1), replace(measured, phases=phases, device_bytes_by="process")
    )

    assert {each.name: each.measured for each in compared.peak} == {
        "allocated": 5 * MIB, "reserved": 9 * MIB, "device": 509 * MIB, "outside": 500 * MIB,
    }  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure"], "nothing says what to measure"),
        (["measure", "--", *TWO_RANKS], "no GPU that NVIDIA's driver knows"),
        (["measure", "--device", "cpu", "--output", "no/such/m.jsonl", "--", *TWO_RANKS], "cannot be written"),
        (["measure", "--device", "cpu", "--", "mytrainer", "x"], "is not a known launcher"),
        (["measure", "--device", "cpu", "--", "/no/python3", "x.py"], "cannot be started: No such file"),
        (["measure", "--device", "cuda:1", "--", *TWO_RANKS], "a program chooses its GPUs itself"),
        (["measure", "--rank", "1", "--", *TWO_RANKS], "measured in all its ranks"),
        (["measure", "job.yaml", "--", *TWO_RANKS], "job.yaml stands beside a command"),
        (["measure", "job.yaml"], "no device is said"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_started(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.truth.measuring.nvml.device_count", lambda: 0)
    Path("train.py").write_text("print('started')")

    assert cli.main(arguments) == 2

    ended = capfd.readouterr()
    assert ended.out == ""
    assert said in ended.err
    assert "\n  allowed: " in ended.err
    assert not Path("measurements.jsonl").exists()

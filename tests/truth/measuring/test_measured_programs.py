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
from planner.truth.measuring.measurement_lines import Levels
from planner.truth.measuring.program import MeasuredProgram, World, from_json, measure_program, write
from planner.truth.plan_comparison import with_program

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


def run(program: str, *, ranks: int = 2, snapshots: Path | None = None) -> MeasuredProgram:
    Path("train.py").write_text(f"import os, sys\nrank = int(os.environ.get('RANK', 0))\n{program}\n")
    command = TWO_RANKS if ranks == 2 else (sys.executable, "train.py")
    return measure_program(command, World(size=ranks), Path("measured.json"), snapshots=snapshots)


def levels(allocated: int, reserved: int) -> Levels:
    return Levels(requested_bytes=allocated, allocated_bytes=allocated, active_bytes=allocated, reserved_bytes=reserved)


@pytest.mark.usefixtures("folder")
def test_each_rank_has_its_own_peaks() -> None:
    found = run("import torch\ntorch.cuda.take(10 << 20, 20 + rank << 20)\ntorch.cuda.take(1 << 20, 20 + rank << 20)")

    assert [(each.rank, each.peak, each.end.allocated_bytes) for each in found.ranks] == [
        (rank, levels(10 * MIB, (20 + rank) * MIB), MIB) for rank in (0, 1)
    ]
    assert (found.exit_code, found.without_figures, found.world_size) == (0, (), 2)
    assert found.ranks[0].software["torch"] == "2.9.1+cu128"


@pytest.mark.usefixtures("folder")
def test_counters_that_a_program_sets_back_lose_nothing() -> None:
    (rank,) = run(
        "import torch\ntorch.cuda.take(9 << 20, 9 << 20)\ntorch.cuda.take(1 << 20, 2 << 20)\n"
        "torch.cuda.reset_peak_memory_stats()\nassert torch.cuda.memory_stats()['allocated_bytes.all.peak'] == 1 << 20",
        ranks=1,
    ).ranks

    assert (rank.peak.allocated_bytes, rank.peak.reserved_bytes, rank.resets) == (9 * MIB, 9 * MIB, 1)


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

    assert [each.rank for each in found.ranks] == [0]
    ((rank, said),) = [(each.rank, each.reason) for each in found.without_figures]
    assert rank == 1
    assert reason in said


@pytest.mark.usefixtures("folder")
def test_an_exception_that_ended_a_rank_stands_with_its_peaks() -> None:
    (rank,) = run("import torch\ntorch.cuda.take(5 << 20, 6 << 20)\nraise MemoryError('CUDA is full')", ranks=1).ranks

    assert (rank.ended_by, rank.peak.allocated_bytes) == ("MemoryError: CUDA is full", 5 * MIB)


def test_what_a_user_has_python_do_first_is_done(folder: Path) -> None:
    (folder / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_user = 7\n")

    found = run("import sitecustomize, torch\ntorch.cuda.take(of_the_user << 20, 8 << 20)", ranks=1)

    assert [each.peak.allocated_bytes for each in found.ranks] == [7 * MIB]


@pytest.mark.usefixtures("folder")
def test_a_program_finds_torch_without_importing_it_and_is_still_measured() -> None:
    looks = "import importlib.util\nassert importlib.util.find_spec('torch') and 'torch' not in sys.modules"

    found = run(f"{looks}\nimport torch\ntorch.cuda.take(1 << 20, 2 << 20)", ranks=1)

    assert len(found.ranks) == 1


@pytest.mark.usefixtures("folder")
def test_what_a_rank_starts_itself_is_not_the_rank() -> None:
    helper = "import torch; torch.cuda.take(90 << 20, 90 << 20)"
    started = f"import subprocess\nsubprocess.run([sys.executable, '-c', {helper!r}], check=True)"

    found = run(f"import torch\n{started}\ntorch.cuda.take(1 << 20, 2 << 20)")

    assert [(each.rank, each.peak.allocated_bytes) for each in found.ranks] == [(0, MIB), (1, MIB)]


def test_a_history_is_kept_for_each_rank(folder: Path) -> None:
    found = run("import torch\ntorch.cuda.take(1 << 20, 2 << 20)", snapshots=folder / "histories")

    assert [each.snapshot for each in found.ranks] == ["rank-0.pickle", "rank-1.pickle"]
    assert sorted(each.name for each in (folder / "histories").iterdir()) == ["rank-0.pickle", "rank-1.pickle"]


def test_a_command_ends_with_its_own_exit_code_and_says_what_it_says(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import sys\nprint('from the program')\nsys.exit(7)\n")

    assert cli.main(["measure", "--device", "cpu", "--", "A=1", sys.executable, "train.py"]) == 7

    said = capfd.readouterr()
    assert said.out == "from the program\n"
    assert "planner: rank 0 left no figures: no Python of it that imported torch was seen" in said.err
    assert said.err.endswith("planner: figures of 0 of 1 ranks in measured.json\n")
    assert from_json(document_of("measured.json")).exit_code == 7
    assert sorted(each.name for each in folder.iterdir()) == ["bin", "measured.json", "site", "train.py"]


def document_of(path: str) -> dict[str, object]:
    return json.loads(Path(path).read_text())  # type: ignore[no-any-return]


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
    write(Path("measured.json"), measured)
    Path("run.json").write_text(json.dumps(to_json(statement)))

    assert cli.main(["compare", "run.json", "measured.json", "--format", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(each["name"], each["error_percent"]) for each in first["peak"]] == [("allocated", 0.0), ("reserved", 0.0)]
    assert (second["case"], second["peak"]) == ("rank 1", [])
    assert second["notes"][0].startswith("no figures: ")

    assert cli.main(["compare", "run.json", "measured.json", "--rank", "0"]) == 0
    assert "allocated" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_what_cannot_stand_beside_a_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.json").write_text(json.dumps(to_json(statement_of_a_run(ranks=1))))
    write(Path("none.json"), run("import torch", ranks=1))
    Path("steps.jsonl").write_text("")
    Path("broken.json").write_text(json.dumps({**document_of("none.json"), "ranks": 3}))

    said = []
    for name in ("none.json", "steps.jsonl", "broken.json"):
        assert cli.main(["compare", "run.json", name]) == 2
        said.append(capsys.readouterr().err.splitlines()[0])

    assert said == [
        "the measured program has no figures (rank 0: it ended without having used CUDA)",
        "steps.jsonl is not a measured program, with which a run of a program can be compared",
        "measured program.ranks: 3 is of a wrong type",
    ]


@pytest.mark.usefixtures("folder")
def test_device_bytes_are_the_reserved_peak_and_what_was_outside_at_the_end() -> None:
    measured = run("import torch\ntorch.cuda.take(5 << 20, 9 << 20)\ntorch.cuda.take(0, 4 << 20)", ranks=1)
    held = replace(measured, ranks=(replace(measured.ranks[0], device_bytes_at_end=504 * MIB),))

    (compared,) = with_program(statement_of_a_run(ranks=1), held)

    assert {each.name: each.measured for each in compared.peak} == {
        "allocated": 5 * MIB, "reserved": 9 * MIB, "device": 509 * MIB, "outside": 500 * MIB,
    }  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure"], "nothing says what to measure"),
        (["measure", "--", *TWO_RANKS], "no GPU that NVIDIA's driver knows"),
        (["measure", "--device", "cpu", "--output", "no/such/m.json", "--", *TWO_RANKS], "cannot be written"),
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
    assert not Path("measured.json").exists()

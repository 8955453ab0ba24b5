"""What `make programs` does around the programs: which runs are drawn, what tables and logs say of them, and errors."""

from __future__ import annotations

import base64
import lzma
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import error_table
import liger
import liger_measurements
import nanochat
import outcomes
import parameter_golf
import published_pages
import pytest
import recorded_run
import run_programs

from planner.units import GIB, MIB

CODE = """
class Hyperparameters:
    iterations = int(os.environ.get("ITERATIONS", 20000))
    tied: bool = bool(int(os.environ.get("TIE_EMBEDDINGS", "1")))
    fraction = float(os.environ.get("WARMDOWN_FRAC", 0.3))
    data_path = os.environ.get("DATA_PATH", "./data")
    seed = int(os.environ.get("SEED", 1337))
"""
REPORT = {
    "source": "fork report.md", "commit": "83dccc2", "gpus": "8xH100 80GB", "torch": "2.9.1+cu128", "depth": "16",
    "device_batch_size": "32", "max_seq_len": "2048", "total_batch": "auto 524288", "fp8": "no", "window": "SSSL",
    "world": "8", "peak_allocated_MiB": "48352.75",
}  # fmt: skip


def a_run(number: int, torch: str = "2.9", ranks: int = 8, **named: Any) -> recorded_run.RecordedRun:
    return recorded_run.RecordedRun(
        name=str(number), torch=torch, gpu="H100-SXM-80GB", product="H100", ranks=ranks, **named
    )


# The runner


def test_a_draw_has_runs_of_seldom_versions_beside_the_usual_one() -> None:
    runs = [*(a_run(number) for number in range(400)), *(a_run(400 + number, "2.6", 1) for number in range(4))]

    drawn = run_programs.draw_runs(runs, 40, seed=1)

    assert drawn == run_programs.draw_runs(runs, 40, seed=1)
    assert len(drawn) == 40
    assert sum(run.torch == "2.6" for run in drawn) > 1


@pytest.mark.parametrize(
    ("name", "word", "is_named"),
    [
        ("1120", "1120", True), ("1120", "112", False), ("1120", "golf/1120", True), ("1120", "other/1120", False),
        ("2025-01-16_Sub3Min", "2025-01", True), ("2025-01-16_Sub3Min", "golf/Sub3", True),
        ("2025-01-16_Sub3Min", "16", False),
    ],
)  # fmt: skip
def test_words_name_runs_by_their_numbers_or_parts_of_scripts(name: str, word: str, is_named: bool) -> None:
    assert run_programs.is_named("golf", recorded_run.RecordedRun(name=name), word) == is_named


@pytest.mark.parametrize(
    ("peak_mib", "error"), [(99, -1.0), (100, 0.0), (110, 0.0), (110.9, 0.0), (121, 10.0)], ids=str
)
def test_an_error_is_that_against_the_nearer_end_of_what_was_printed(peak_mib: float, error: float) -> None:
    assert recorded_run.Figure("allocated", (100, 110), int(peak_mib * MIB)).error == pytest.approx(error)


def test_a_nightly_runs_with_the_interpreter_of_the_release_after_it() -> None:
    pythons = run_programs.read_pythons("2.7=/seven/bin/python,2.10=/ten/bin/python")

    assert pythons[recorded_run.minor_version("2.7.0.dev20250110+cu126")] == "/seven/bin/python"
    assert pythons[recorded_run.minor_version("2.10.0+cu128")] == "/ten/bin/python"


@dataclass
class Options:
    folder: Path
    pythons: dict[str, str]
    steps: int | None = None
    again: bool = False
    shown: bool = False
    seconds: float = 1.0
    triton: str = ""


class FakeFamily(recorded_run.Family[recorded_run.RecordedRun, str]):
    name = "fake"

    def __init__(self, checkouts: Path | None = None) -> None: ...

    def read_runs(self) -> list[recorded_run.RecordedRun]:
        return []

    def read_program(self, run: recorded_run.RecordedRun) -> str:
        return f"program of {run.name}"

    def write(self, run: recorded_run.RecordedRun, program: str, folder: Path, python: str) -> recorded_run.Launch:  # noqa: ARG002
        return recorded_run.Launch(folder=folder, command=["python", program], steps=7, options=["--with", "x"])


def test_a_run_is_started_once_by_the_interpreter_of_its_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(
        run_programs,
        "run_planner",
        lambda command, _work, _env: commands.append(command) or {"answer": {}, "seconds": 1},
    )
    options = Options(tmp_path, {"2.9": "/nine/bin/python"})

    results = [run_programs.find_result(FakeFamily(), a_run(3), options) for _ in range(2)]

    assert results[0] == results[1]
    assert [" ".join(command) for command in commands] == [
        "/nine/bin/python -m planner run --format json --ranks 0 --gpu H100-SXM-80GB --steps 7 --seconds 1.0 "
        "--with x -- python program of 3"
    ]


def test_a_program_that_another_run_had_too_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        run_programs, "run_planner", lambda command, _work, _env: started.append(command[-1]) or {"answer": {}}
    )
    monkeypatch.setattr(FakeFamily, "read_program", lambda _family, run: f"program of {int(run.name) // 2}")
    options = Options(tmp_path, {"2.9": "/nine/bin/python"})

    results = [run_programs.find_result(FakeFamily(), a_run(number), options) for number in (2, 3, 4)]

    assert started == ["program of 1", "program of 2"]
    assert results[0] == results[1] != results[2]


def test_a_model_of_another_size_than_that_of_the_run_is_a_reason_and_no_error() -> None:
    result = {"answer": {}, "seconds": 7.0, "written": {"parameters": 1000}}

    assert run_programs.refuse_other_model(a_run(1, parameters=1000), result) == result
    assert run_programs.refuse_other_model(a_run(1), result) == result
    assert run_programs.refuse_other_model(a_run(1, parameters=2000), result) == {
        "seconds": 7.0,
        "written": {"parameters": 1000},
        "stderr": "a setting is nowhere said: its model had 2,000 parameters, by what is said it has 1,000",
    }


def test_what_else_may_have_run_is_run_where_the_model_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        run_programs, "run_planner", lambda command, _work, _env: started.append(command[-1]) or {"answer": {}}
    )
    monkeypatch.setattr(FakeFamily, "read_written", lambda *_: {"parameters": 1000 * len(started)})
    monkeypatch.setattr(FakeFamily, "read_other_program", lambda _family, _run, program: f"other {program}")
    options = Options(tmp_path, {"2.9": "/nine/bin/python"})

    results = [run_programs.find_result(FakeFamily(), a_run(3, parameters=2000), options) for _ in range(2)]

    assert started == ["program of 3", "other program of 3"]
    assert results[0] == results[1]
    assert results[0]["written"] == {"parameters": 2000}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (a_run(1, torch="2.8"), "no interpreter with torch 2.8 in --pythons"),
        (a_run(1, obstacle="its code is not published"), "its code is not published"),
    ],
    ids=["interpreter", "obstacle"],
)
def test_what_cannot_be_run_says_why(tmp_path: Path, run: recorded_run.RecordedRun, reason: str) -> None:
    result = run_programs.find_result(FakeFamily(), run, Options(tmp_path, {"2.9": "/nine/bin/python"}))
    outcome = outcomes.compare(run, [], result, "2026-11-25")

    assert outcome.reason == reason
    assert reason in run_programs.print_line(outcome, result)
    assert list(run_programs.sum_up([outcome])) == ["0 of 1 ran", f"1 did not run: {reason}"]


def test_a_run_whose_time_was_over_did_not_run() -> None:
    late = {"answer": {"ending": "ended because its time is over (--seconds)"}, "seconds": 7.0}
    whole = {"answer": {"ending": "ended after 7 iterations, as asked for"}, "seconds": 7.0}

    assert run_programs.refuse_cut_off(whole) == whole
    assert run_programs.refuse_cut_off(late) == {
        "seconds": 7.0,
        "stderr": "ended because its time is over (--seconds)",
    }


def an_outcome(number: int, peak_mib: int) -> outcomes.Outcome:
    """Of a compiled program that printed 100 and 200 MiB."""
    run = a_run(number, allocated=(100, 100), reserved=(200, 200))
    kind = {"compiled": True, "program": True, "traits": [], "several_ranks": True}
    counted = {"max_allocated_bytes": peak_mib * MIB, "max_reserved_bytes": (peak_mib + 100) * MIB}
    result = {"answer": {"counted": counted, "rank_classes": [{"kind": kind}]}, "seconds": 7}
    return outcomes.compare(run, FakeFamily().read_figures(run, result), result, "2026-11-25")


def test_a_summary_has_the_median_and_the_worst_of_each_figure() -> None:
    compared = [an_outcome(number, peak_mib) for number, peak_mib in enumerate((100, 101, 120))]

    assert list(run_programs.sum_up(compared)) == [
        "3 of 3 ran",
        "allocated: median 1.000 %, worst 20.000 % of 3, 1 of them 0",
        "reserved: median 0.500 %, worst 10.000 % of 3, 1 of them 0",
    ]


def test_the_page_has_every_run_with_its_errors_or_its_reason() -> None:
    failed = outcomes.compare(a_run(9), [], {"stderr": "train.py:3: no such file"}, "2026-11-25")

    page = outcomes.write_page({"fake": [an_outcome(1, 101), failed]})

    assert "| fake | 1 of 2 | allocated | 1.000 % | 1.000 % | 1 of 1 |" in page
    assert "| 1 |  | 2.9 | H100 | 8 | 100 | 101.0 | +1.000 % | 200 | 201.0 | +0.500 % | 7 | 2026-11-25 |" in page
    assert "| 9 |  | 2.9 | H100 | 8 | did not run: train.py:3: no such file |  |  |  |  |  |  | 2026-11-25 |" in page


def test_the_page_of_recorded_runs_is_as_they_are_kept() -> None:
    assert outcomes.PAGE.read_text(encoding="utf-8") == outcomes.write_page(outcomes.read_kept())


def test_a_run_is_an_error_of_its_kind() -> None:
    (error,) = error_table.errors_of_outcomes({"speedrun": [an_outcome(1, 120)]})

    assert (error.source, error.kind.name) == ("speedrun: 1", "compiled programs, several ranks")
    assert (error.figure, error.error) == ("reserved", pytest.approx(200 / 220 - 1, abs=1e-6))


def test_a_run_is_judged_by_the_interval_of_its_kind() -> None:
    assert error_table.judge_outcome(an_outcome(1, 120)) == "fits"
    assert error_table.judge_outcome(an_outcome(1, 90_000)) == "exceeds"


def test_intervals_and_what_pages_say_of_them_are_as_runs_are_kept() -> None:
    rows, kept = error_table.read_errors(), outcomes.read_kept()

    assert error_table.DATA.read_text(encoding="utf-8") == error_table.write_data(rows)
    assert error_table.PAGE.read_text(encoding="utf-8") == error_table.write_page(rows, kept)
    summary = error_table.summarize(rows, kept)
    for page in error_table.SUMMARIZED:
        assert summary in page.read_text(encoding="utf-8"), page


def test_no_run_that_ran_is_said_to_exceed() -> None:
    judged = [error_table.judge_outcome(each) for kept in outcomes.read_kept().values() for each in kept]

    assert judged.count("exceeds") == 0


def test_files_come_out_of_a_checkout_at_a_commit(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    (tmp_path / "script.py").write_text("x = 1\r\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    repository = recorded_run.Repository(tmp_path)

    repository.write_tree("HEAD", tmp_path / "copy")

    assert repository.has("HEAD")
    assert not repository.has("HEAD~1")
    assert repository.read_text("HEAD", "script.py") == "x = 1\n"
    assert repository.read_text("HEAD", "other.py") == ""
    assert (tmp_path / "copy" / "script.py").read_bytes() == b"x = 1\r\n"

    repository.write_tree("HEAD", tmp_path / "part", ["script.py"])

    assert [path.name for path in (tmp_path / "part").iterdir()] == ["script.py"]


# Scripts of speedruns


# Logs of parameter-golf


def test_settings_are_what_a_log_prints_under_the_names_of_the_script() -> None:
    head = "iterations:9000 tied:True\n  WARMDOWN_FRAC=0.667\ndata_path: /somewhere/else\nseed:42\nheads:8\n"

    assert parameter_golf.read_settings(CODE, head) == {
        "ITERATIONS": "9000", "TIE_EMBEDDINGS": "1", "WARMDOWN_FRAC": "0.667"
    }  # fmt: skip


def test_a_training_is_shortened_with_the_settings_that_count_its_steps() -> None:
    code = """
iterations = int(env("ITERATIONS", 20000)); seconds = float(env("MAX_WALLCLOCK_SECONDS", 600))
warmdown = int(env("WARMDOWN_ITERS", 3500)); every = int(env("SWA_EVERY", "50"))
accumulated = int(env("GRAD_STEPS", 8))
limit = 1000 * h.max_wallclock_seconds if h.max_wallclock_seconds > 0 else None
print(torch.cuda.max_memory_allocated())
"""

    assert parameter_golf.shorten_training(code, {"WARMDOWN_ITERS": "2500", "LAWA_FREQ": "1250"}, 5000) == {
        "ITERATIONS": "8", "MAX_WALLCLOCK_SECONDS": "0", "WARMDOWN_ITERS": "12", "SWA_EVERY": "1", "LAWA_FREQ": "2"
    }  # fmt: skip
    assert parameter_golf.shorten_training(code, {}, 4)["ITERATIONS"] == "4"
    for needed in ("ITERATIONS", "else None", "max_memory_allocated"):
        assert parameter_golf.shorten_training(code.replace(needed, ""), {}, 5000) == {}


# Rows of parameter-golf's table, with the logs and pages of their repository


@pytest.fixture
def golf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., recorded_run.RecordedRun]:
    """Reads a table of one row, which may say more than its script and log, out of a repository with these files."""

    def read(log: str, page: str = "", **columns: str) -> recorded_run.RecordedRun:
        folder = tmp_path / "parameter-golf" / "records" / "track_10min_16mb" / "run"
        folder.mkdir(parents=True)
        for name, text in {"train.log": log, "train_gpt.py": CODE, "README.md": page}.items():
            (folder / name).write_text(text)
        git = ["git", "-C", str(tmp_path / "parameter-golf"), "-c", "user.name=a", "-c", "user.email=a"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
            subprocess.run([*git, *words], check=True)
        path = "records/track_10min_16mb/run"
        blob = subprocess.run([*git, "rev-parse", f"HEAD:{path}/train.log"], capture_output=True, text=True, check=True)
        row = {"path": f"{path}/train.log", "blob": blob.stdout.strip(), "commit": "HEAD", "values": "1", "alloc": "10",
               "res": "12", "script": f"{path}/train_gpt.py", "world": "8", "gpu": "", "torch": ""}  # fmt: skip
        row |= columns
        table = tmp_path / "table.csv"
        table.write_text("\n".join((",".join(row), ",".join(row.values()))) + "\n")
        monkeypatch.setattr(parameter_golf.ParameterGolf, "table", table)
        return parameter_golf.ParameterGolf(tmp_path).read_runs()[0]

    return read


Golf = Callable[..., recorded_run.RecordedRun]


def test_a_row_whose_own_log_says_all_of_it_may_be_drawn(golf: Golf) -> None:
    log = "Running PyTorch 2.9.1+cu128\nmodel_params:17059912\nstep:1 train_loss:7"

    run = golf(log, gpu="NVIDIA H100 80GB HBM3")

    assert (run.torch, run.gpu, run.ranks, run.obstacle, run.inferred) == ("2.9", "H100-SXM-80GB", 8, "", "")
    assert run.parameters == 17059912


def test_what_its_page_alone_says_is_taken_and_said(golf: Golf) -> None:
    run = golf("step:1 train_loss:7", "8xH100 80GB SXM, PyTorch 2.8.0+cu128 (`torch==2.8`)")

    assert (run.torch, run.gpu, run.ranks, run.obstacle) == ("2.8", "H100-SXM-80GB", 8, "")
    assert run.inferred == "only what lies beside its log, or the log alone, has its torch, GPU"


def test_a_run_that_only_evaluates_weights_that_it_loads_is_not_run(golf: Golf, tmp_path: Path) -> None:
    run = golf("Running PyTorch 2.9.1\neval_only: loading /scratch/final.pt, skipping training\nstep:0/0 val_loss:1.9")
    family = parameter_golf.ParameterGolf(tmp_path)

    assert run_programs.find_result(family, run, Options(tmp_path, {"2.9": "/nine/bin/python"})) == {
        "stderr": "it evaluates weights that are not published, and does not train"
    }


def test_a_script_that_unpacks_itself_is_read_unpacked() -> None:
    packed = base64.b85encode(lzma.compress(CODE.encode())).decode()

    assert parameter_golf.unpack(f'import lzma as L,base64 as B\nexec(L.decompress(B.b85decode("{packed}")))') == CODE
    in_parts = f'exec(L.decompress(B.b85decode("{packed[:50]}"\n"{packed[50:]}")))'
    assert parameter_golf.unpack(in_parts) == CODE
    assert parameter_golf.unpack(CODE) == CODE
    packs_itself = """wrapper = b'exec(L.decompress(B.b85decode("' + encoded + b'")))'"""
    assert parameter_golf.unpack(packs_itself) == packs_itself


# Reports of nanochat


def test_a_report_says_the_words_that_its_script_takes() -> None:
    settings = nanochat.read_settings(REPORT)
    dashed = 'parser.add_argument("--device-batch-size", type=int)'

    assert nanochat.write_words("", settings, 8) == [
        "--depth=16", "--device_batch_size=32", "--max_seq_len=2048", "--window_pattern=SSSL", "--eval_tokens=1048576"
    ]  # fmt: skip
    assert nanochat.write_words(dashed, nanochat.read_settings(REPORT | {"fp8": "tensorwise", "window": ""}), 1) == [
        "--depth=16", "--device-batch-size=32", "--max-seq-len=2048", "--fp8-recipe=tensorwise", "--eval-tokens=131072",
        "--fp8",
    ]  # fmt: skip


# Runs of published pages


def test_what_was_held_is_that_of_the_last_end_of_its_phase() -> None:
    run = next(run for run in published_pages.RUNS if run.name == "deepspeed-baseline")
    ends = [("load", 1), ("optimizer_step", 25 * GIB), ("optimizer_step", 26_360 * MIB), ("forward", 2)]
    phases = [{"phase": phase, "end_allocated_bytes": size} for phase, size in ends]
    counted = {"max_allocated_bytes": 32_130 * MIB}

    figures = published_pages.PublishedPages(None).read_figures(
        run, {"answer": {"counted": counted, "rank_classes": [{"phases": phases}]}}
    )

    assert [(figure.name, figure.planned, figure.error) for figure in figures] == [
        ("allocated", 32_130.0, 0.0),
        ("held", 26_360.0, 0.0),
    ]


# Measurements of Liger's kernels

ROW = {
    "kernel_name": "rope", "kernel_provider": "liger", "kernel_operation_mode": "full", "metric_name": "memory",
    "metric_unit": "MB", "x_name": "T", "x_label": "sequence length", "x_value": "1024", "y_value_50": "49.13330078125",
    "y_value_20": "49.13330078125", "y_value_80": "49.13330078125",
    "extra_benchmark_config_str": '{"dtype": "torch.bfloat16", "hidden_size": 8192}',
    "gpu_name": "NVIDIA A100-SXM4-80GB", "timestamp": "2024-09-03 15:40:14", "liger_version": "0.2.1",
}  # fmt: skip


def test_a_row_of_liger_says_its_measurement_and_the_release_of_its_day() -> None:
    run = liger.read_measurement(3, ROW)

    assert (run.title, run.torch, run.gpu, run.allocated, run.obstacle) == (
        "rope liger full T=1024", "2.6", "A100-SXM-80GB", (49.13330078125, 49.13330078125), ""
    )  # fmt: skip
    assert liger.read_measurement(3, ROW | {"timestamp": "2025-11-11 06:22:59"}).torch == "2.9"
    assert liger.read_measurement(3, ROW | {"timestamp": "2026-06-15 22:13:03"}).torch == "2.12"
    assert liger.read_measurement(3, ROW | {"gpu_name": "Other"}).obstacle == "its GPU is not known"


def test_rows_are_measured_in_the_order_of_the_script_after_what_it_measured_before() -> None:
    config = {"dtype": "torch.half", "H": 8}
    rows = [
        {"name": "1", "kernel": "rope", "provider": "b", "mode": "full", "x_name": "T", "x": 64, "config": config},
        {"name": "2", "kernel": "rope", "provider": "b", "mode": "full", "x_name": "T", "x": 128, "config": config},
        {"name": "3", "kernel": "rope", "provider": "c", "mode": "full", "x_name": "T", "x": 64, "config": config},
        {"name": "4", "kernel": "rope", "provider": "a", "mode": "full", "x_name": "T", "x": 64, "config": {"H": 9}},
        {"name": "5", "kernel": "rope", "provider": "a", "mode": "full", "x_name": "H", "x": 64, "config": config},
    ]  # fmt: skip
    measured: list[tuple[str, str, int]] = []

    def bench(name: str) -> Any:
        def run(given: SimpleNamespace) -> SimpleNamespace:
            measured.append((name, given.kernel_provider, given.x))
            if given.kernel_provider == "c":
                raise ValueError("not there")
            return SimpleNamespace(y_50=float(given.x))

        return run

    measurements = liger_measurements.Measurements(rows, SimpleNamespace, SimpleNamespace(half="half"))
    for metric in ("speed", "memory"):
        measurements.run_benchmarks(
            bench(metric), kernel_name="rope", metric_name=metric, x_name="T", x_values=[32, 64],
            kernel_providers=["a", "b", "c"], kernel_operation_modes=["full"], overwrite=False,
            extra_benchmark_configs=[{"dtype": "half", "H": 8}],
        )  # fmt: skip

    assert measured == [
        ("speed", "a", 32), ("speed", "b", 32), ("speed", "c", 32),
        ("memory", "a", 32), ("memory", "b", 64), ("memory", "b", 128), ("memory", "c", 64), ("memory", "a", 64),
    ]  # fmt: skip
    peaks = {name: peak for name, peak in measurements.peaks.items() if name}
    assert peaks == {"1": 64.0, "2": 128.0, "3": "ValueError: not there", "4": 64.0}

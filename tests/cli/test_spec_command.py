"""`planner spec` and what every command has in common: exit codes, messages, streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from planner import cli
from planner.errors import SpecError

REPOSITORY = Path(__file__).parents[2]
SPEC = """
metadata: {name: größer}
model: {decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 1000}}
train: {sequence_length: 128}
cluster: {gpu: H100-SXM-80GB}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def test_it_prints_the_spec_with_every_default(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["spec", "--all", str(spec)]) == 0

    shown = capsys.readouterr()
    assert "  name: größer\n" in shown.out
    assert "    bucket_cap_mb: 25.0\n" in shown.out
    assert shown.err == ""


def test_it_prints_what_differs_from_the_defaults(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["spec", str(spec), "--set", "train.recompute=full", "--set", "parallel.tp=1"]) == 0

    assert yaml.safe_load(capsys.readouterr().out) == {
        "metadata": {"name": "größer"},
        "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 1000}},
        "train": {"sequence_length": 128, "recompute": "full"},
        "cluster": {"gpu": "H100-SXM-80GB"},
    }


def test_a_bundle_goes_in_wherever_a_spec_does(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["spec", "--bundle", str(spec)])
    bundle = capsys.readouterr().out
    assert json.loads(bundle)["schema"] == "planner.bundle/1"
    (tmp_path / "any-name").write_text(bundle, encoding="utf-8")

    assert cli.main(["spec", str(tmp_path / "any-name"), "--bundle"]) == 0
    assert capsys.readouterr().out == bundle


def test_a_wrong_spec_is_one_message_on_stderr_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.yaml"

    assert cli.main(["spec", str(missing)]) == 2

    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"there is no file {missing}\n")


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["spec", "a", "b"], ["spec", "--no-such"]])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: planner")


@pytest.mark.parametrize("arguments", [["--help"], ["spec", "--help"], ["--version"]])
def test_asking_for_help_or_the_version_is_no_fault(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert "planner" in capsys.readouterr().out


Failing = Callable[[Exception | BaseException], None]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Lets `planner spec` end in an exception."""

    def fail_with(error: BaseException) -> None:
        def run(_: object) -> int:
            raise error

        monkeypatch.setattr(cli.plan_commands, "run_spec", run)

    return fail_with


def test_our_own_fault_is_exit_code_1_and_one_line(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyError("degree"))

    assert cli.main(["spec", "job.yaml"]) == 1
    assert capsys.readouterr().err == (
        "planner: a fault of planner itself, please report it: KeyError: 'degree'; --debug shows where\n"
    )


@pytest.mark.parametrize("arguments", [["--debug", "spec", "job.yaml"], ["spec", "job.yaml", "--debug"]])
def test_debug_shows_where_it_went_wrong(
    arguments: list[str], failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(RuntimeError(""))

    assert cli.main(arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.endswith("planner: a fault of planner itself, please report it: RuntimeError\n")


def test_debug_may_come_from_the_environment(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANNER_DEBUG", "1")
    failing(SpecError("wrong"))

    assert cli.main(["spec", "job.yaml"]) == 2
    assert capsys.readouterr().err.startswith("Traceback (most recent call last):")


def test_an_interrupt_is_reported_as_shells_do(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyboardInterrupt())

    assert cli.main(["spec", "job.yaml"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_has_gone_is_no_fault(spec: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    command = [sys.executable, "-m", "planner", "spec", str(spec)]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    os.close(writing)

    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_place_is_named_as_the_person_named_the_file(spec: Path) -> None:
    (spec.parent / "wrong.yaml").write_text(SPEC + "trian: {}\n", encoding="utf-8")

    ended = subprocess.run(
        [sys.executable, "-m", "planner", "spec", "wrong.yaml"],
        capture_output=True,
        text=True,
        cwd=spec.parent,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith("wrong.yaml:6:1: unknown key `trian` in a job spec\n")

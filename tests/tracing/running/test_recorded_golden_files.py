"""How golden files of Megatron-LM become programs: which commit has measured one, its words, its made-up data."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import megatron
import pytest
import recorded_run

TESTS = "tests/functional_tests/test_cases/gpt"


def golden(allocated: int, seconds: float) -> str:
    """A golden file of two iterations."""
    series = {"mem-allocated-bytes": allocated, "mem-max-allocated-bytes": 2 * allocated, "iteration-time": seconds}
    return json.dumps({name: {"values": {"1": value, "2": value}} for name, value in series.items()}, indent=1)


class History:
    """A repository whose commits are told one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._git("init", "-q")

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: dict[str, str | None]) -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text, encoding="utf-8")
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "changed")
        return self._git("rev-parse", "HEAD")


def test_the_commit_of_a_golden_file_is_the_one_that_last_changed_its_memory_whatever_was_edited_or_renamed_since(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    old, new = f"{TESTS}/case_dgx/golden_values_dev.json", f"{TESTS}/case/golden_values_dev_dgx_h100.json"
    history.commit({old: golden(100, 1.0)})
    measured = history.commit({old: golden(200, 1.0)})
    history.commit({old: golden(200, 2.0)})
    history.commit({old: None, new: golden(200, 2.0)})

    assert megatron.find_origins(recorded_run.Repository(tmp_path), [new]) == {new: (measured, old)}


def test_words_of_a_case_are_those_that_its_shell_script_makes() -> None:
    case = {"--bf16": True, "--lr": 0.00015, "--weight-decay": "1e-2", "--blend": "[0.7 data]", "--save": "${A}/b"}

    assert list(megatron.write_words(case)) == [
        "--bf16", "--lr", "0.00015", "--weight-decay", "1e-2", "--blend", "0.7", "data", "--save", "${A}/b",
    ]  # fmt: skip


def test_figures_are_those_of_the_first_second_and_last_iteration_that_the_program_wrote() -> None:
    series = {
        "mem-max-allocated-bytes": {"1": 10.0, "2": 12.0, "3": 12.0},
        "mem-allocated-bytes": {"1": 4.0, "2": 6.0, "3": 7.0},
    }

    assert megatron.name_figures(series) == {
        "peak after the first": 10, "peak after the second": 12, "allocated after the first": 4,
        "allocated at the end": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        ({}, ""),
        ({"torch": ""}, "torch of the container 26.09 is not known"),
        ({"torch": "2.5"}, "torch 2.5 is older than planner knows"),
        (
            {"packages": (("transformer-engine", "2.5.0"),)},
            "TransformerEngine of the container 26.09 is older than planner knows",
        ),
        ({"ranks": 0}, "nothing says its number of ranks"),
    ],
)
def test_a_golden_file_that_cannot_be_run_says_why(changed: dict[str, Any], obstacle: str) -> None:
    known = {"torch": "2.12", "packages": (("transformer-engine", "2.16.0"),), "ranks": 8} | changed
    run = megatron.Golden(name="0", commit="c", folder="f", figures=(), **known)
    row = {"impl": "transformer_engine", "first_step": "1"}

    assert megatron.find_obstacle(run, row, "26.09") == obstacle
    if not obstacle:
        assert megatron.find_obstacle(run, row | {"first_step": "51"}, "26.09") == (
            "it goes on from a checkpoint of all ranks"
        )

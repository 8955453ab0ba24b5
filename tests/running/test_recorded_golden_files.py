"""How golden files of Megatron-LM become programs: which commit has measured one, its words, its made-up data."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "recorded_programs"))
import megatron  # isort: skip
import recorded_run  # isort: skip

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


def test_a_golden_file_that_was_committed_empty_does_not_end_its_family(tmp_path: Path) -> None:
    history = History(tmp_path)
    path = f"{TESTS}/case/golden_values_dev.json"
    history.commit({path: ""})
    measured = history.commit({path: golden(200, 1.0)})

    assert megatron.find_origins(recorded_run.Repository(tmp_path), [path]) == {path: (measured, path)}


def test_words_of_a_case_are_those_that_its_shell_script_makes() -> None:
    case = {"--bf16": True, "--lr": 0.00015, "--weight-decay": "1e-2", "--blend": "[0.7 data]", "--save": "${A}/b"}

    assert list(megatron.write_words(case)) == [
        "--bf16", "--lr", "0.00015", "--weight-decay", "1e-2", "--blend", "0.7", "data", "--save", "${A}/b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fp16", "names"),
    [
        ("", ["peak after the first", "peak after the second", "allocated after the first", "allocated at the end"]),
        ("True", ["allocated at the end"]),
    ],
)
def test_in_float16_only_what_is_left_when_the_scale_has_settled_is_compared(fp16: str, names: list[str]) -> None:
    row = {"max_first": "4", "max_second": "5", "cur_first": "2", "cur_last": "3", "fp16": fp16}

    assert [name for name, _ in megatron.recorded_figures(row)] == names


def test_figures_are_those_of_the_first_second_and_last_iteration_that_the_program_wrote() -> None:
    series = {
        "mem-max-allocated-bytes": {"1": 10.0, "2": 12.0, "3": 12.0},
        "mem-allocated-bytes": {"1": 4.0, "2": 6.0, "3": 7.0},
    }

    assert megatron.name_figures(series) == {
        "peak after the first": 10, "peak after the second": 12, "allocated after the first": 4,
        "allocated at the end": 7,
    }  # fmt: skip


def test_made_up_vocabularies_have_the_size_of_those_that_they_stand_for(tmp_path: Path) -> None:
    megatron.write_data(str(tmp_path / "bpe/vocab.json"))
    files = ("bert-large-cased-vocab.txt", "vocab.txt", "text/common_pile/v01_filtered_data/vocab.txt")
    for file in files:
        megatron.write_data(str(tmp_path / file))

    tokens = json.loads((tmp_path / "bpe/vocab.json").read_text(encoding="utf-8"))
    assert (len(tokens), tokens["<|endoftext|>"]) == (50257, 50256)
    sizes = [len((tmp_path / file).read_text(encoding="utf-8").splitlines()) for file in files]
    assert sizes == [28996, 28996, 30522]


def test_a_made_up_data_set_of_sentences_or_for_t5_has_documents_of_sentences(tmp_path: Path) -> None:
    megatron.write_data(str(tmp_path / "text_sentence"))
    megatron.write_data(str(tmp_path / "my-t5_00_text_document"))
    megatron.write_data(str(tmp_path / "text_document"))

    index = (tmp_path / "text_sentence.idx").read_bytes()
    assert struct.unpack_from("<9sQBQQ", index) == (b"MMIDIDX\x00\x00", 1, 8, 40_000, 2001)
    assert (tmp_path / "text_sentence.bin").stat().st_size == 2 * 40_000 * 15
    assert (tmp_path / "my-t5_00_text_document.idx").read_bytes() == index
    assert struct.unpack_from("<9sQBQQ", (tmp_path / "text_document.idx").read_bytes())[3] == 2000


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

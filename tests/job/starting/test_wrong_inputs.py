"""What people get wrong is answered with what to write: tests/golden/wrong_inputs.txt has each line with its answer.

Run this file to write the answers anew, and read what has changed.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from planner import cli

PAGE = Path(__file__).parents[2] / "golden" / "wrong_inputs.txt"
SPEC = "model: {hf_config: Qwen/Qwen3-0.6B}\ntrain: {sequence_length: 2048}\ncluster: {gpu: H100-SXM-80GB}\n"


def cases() -> dict[str, str]:
    """Every line behind `$ planner spec`, and the answer to it."""
    parts = PAGE.read_text(encoding="utf-8").split("$ planner spec ")[1:]
    return {line: answer.strip() for line, _, answer in (part.partition("\n") for part in parts)}


@contextlib.contextmanager
def folder_with_a_job() -> Iterator[None]:
    """Also without a hub's cache of its own."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder), pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HUB_CACHE", os.path.join(folder, "cache"))
        Path("job.yaml").write_text(SPEC, encoding="utf-8")
        yield


def answer_to(line: str) -> str:
    shown, said = io.StringIO(), io.StringIO()
    with folder_with_a_job(), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        code = cli.main(["spec", *shlex.split(line)])
    assert (code, shown.getvalue()) == (2, ""), f"{line} is not wrong"
    return said.getvalue().strip()


@pytest.mark.parametrize("line", cases())
def test_the_answer_is_exactly(line: str) -> None:
    assert answer_to(line) == cases()[line]


def test_these_are_forty_and_more() -> None:
    assert len(cases()) >= 40


if __name__ == "__main__":
    text = "".join(f"$ planner spec {line}\n{answer_to(line)}\n\n" for line in cases())
    PAGE.write_text(text.rstrip("\n") + "\n", encoding="utf-8")

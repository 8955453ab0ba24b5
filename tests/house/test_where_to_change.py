"""The page that says where to change things names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where to change it")[2]
ROWS = [line.strip("| ").split(" | ", 1) for line in PAGE.splitlines() if line.startswith("| ")][1:]
QUESTIONS = [
    "a GPU",
    "what of a program is counted on the host",
    "what is held on the host",
    "an operator whose result is as large as values say",
    "a function of CUDA that torch calls",
    "a package that is not installed",
    "a case of the matrix for GPUs",
    "measured facts",
    "an optimizer",
    "a parallelism",
    "a way of saving or loading checkpoints",
    "a launcher hook",
    "a metric",
    "an HTTP endpoint",
    "a view of the page",
    "a call of the Python API",
    "an axis of a search",
    "a command",
    "a key of the spec, with its check",
    "a moment when jobs die",
    "an allocator rule",
    "a form of a message that memory ran out",
    "a file of another program in a spec",
    "a launcher or a wrapper of a launch line",
    "a patch of torch",
    "a family of recorded programs",
    "a trait of jobs whose plans are off otherwise",
]


def test_it_answers_these_questions() -> None:
    assert [question for question, _ in ROWS] == QUESTIONS


@pytest.mark.parametrize(("question", "answer"), ROWS, ids=[question for question, _ in ROWS])
def test_every_answer_names_files_that_exist(question: str, answer: str) -> None:
    named = re.findall(r"`((?:planner|benchmarks|docs|tests)/[^`]*)`", answer)

    assert named, question
    assert [path for path in named if not (REPOSITORY / path).exists()] == []

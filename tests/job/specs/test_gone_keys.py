"""A key that specs had once is refused with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from planner.errors import SpecError
from planner.job.json_text import packaged_json
from planner.job.loading import load_document
from planner.job.spec_keys import by_path

GONE = {path: remedy for paths, remedy in packaged_json("foreign_words.json")["gone"].items() for path in paths.split()}
PROGRAM = "plan a program of your own: planner spec --program JOB prints the one to start from, planner run plans it"


def refusal_of(path: str) -> SpecError:
    document: dict[str, Any] = {"model": {"factory": "shop:build"}, "cluster": {"gpu": "T4-16GB"}}
    *sections, key = path.split(".")
    section = document
    for name in sections:
        section = section.setdefault(name, {})
    section[key] = "so"
    with pytest.raises(SpecError) as caught:
        load_document(document)
    return caught.value


@pytest.mark.parametrize("path", GONE)
def test_a_key_that_is_gone_is_no_key_and_its_error_says_what_to_write(path: str) -> None:
    section, _, key = path.rpartition(".")
    refused = refusal_of(path)

    assert path not in by_path()
    assert refused.problem == f"unknown key `{key}` in {section or 'a job spec'}"
    assert refused.remedy == GONE[path].replace("PROGRAM", PROGRAM)


def test_what_a_loop_of_ones_own_does_is_a_program() -> None:
    assert refusal_of("train.retains").remedy == PROGRAM

"""An answer is its parts, whatever is in them; other bytes are found, whatever they are."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.runtime import messages
from planner.runtime.messages import PROBLEM, Answer, AnswerWriter, BrokenAnswerError, read_parts
from planner.service.http.problems import RequestError

NAMES = st.text(st.characters(max_codepoint=127), max_size=255)
PARTS = st.lists(st.tuples(NAMES, st.binary(max_size=500)), max_size=6)


def written(parts: list[tuple[str, bytes]]) -> bytes:
    reading, writing = os.pipe()

    def write() -> None:
        writer = AnswerWriter(writing)
        for name, content in parts:
            writer.write(name, content)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    thread.join()
    return found


@given(parts=PARTS)
def test_what_is_written_is_read(parts: list[tuple[str, bytes]]) -> None:
    assert list(read_parts(written(parts))) == parts


def test_a_part_may_be_larger_than_the_pipe() -> None:
    parts = [("trace", bytes(2**20)), ("plan", b"")]

    assert list(read_parts(written(parts))) == parts


@given(parts=PARTS.filter(bool), data=st.data())
def test_an_answer_that_was_cut_off_gives_its_whole_parts_and_says_so(
    parts: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    whole = written(parts)
    last = len(whole) - len(written(parts[-1:]))
    cut = data.draw(st.integers(last + 1, len(whole) - 1))
    found: list[tuple[str, bytes]] = []

    with pytest.raises(BrokenAnswerError, match="begins no part"):
        found.extend(read_parts(whole[:cut]))

    assert found == parts[:-1]


@given(answer=st.binary(max_size=400))
def test_any_bytes_are_parts_or_said_to_be_none(answer: bytes) -> None:
    try:
        found = list(read_parts(answer))
    except BrokenAnswerError:
        return
    assert written(found) == answer


def test_code_of_users_says_nothing_of_a_request_or_a_service() -> None:
    fields = {"problem": "x", "allowed": "", "remedy": "", "place": "", "status": 599, "headers": {"A": "b"}}
    kinds = [f"{RequestError.__module__}:RequestError", "planner.errors:PlannerError"]
    answer = Answer(parts={PROBLEM: json.dumps({"kinds": kinds, "fields": fields}).encode()})
    of_a_request_only = {PROBLEM: json.dumps({"kinds": kinds[:1], "fields": fields}).encode()}

    assert type(messages.error_of(answer)) is RequestError
    assert type(messages.error_of(replace(answer, is_foreign=True))) is PlannerError
    assert messages.error_of(Answer(parts=of_a_request_only, is_foreign=True)) is None
    messages.raise_failure(Answer(parts=of_a_request_only, is_foreign=True))

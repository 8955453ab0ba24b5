"""What a table of measured workspaces answers: what was measured, what lies between two of them, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import FactsError
from planner.hardware.facts import workspace_table
from planner.hardware.workspaces import (
    WorkspaceAnswer,
    WorkspaceFact,
    WorkspaceRequest,
    WorkspaceTable,
    from_json,
    to_json,
)

Fact = Callable[..., WorkspaceFact]
GPU = "H200-SXM-141GB"


def table(*facts: WorkspaceFact) -> WorkspaceTable:
    return WorkspaceTable(facts, GPU, "2.13")


def test_what_was_measured_is_answered_as_it_was(fact: Fact) -> None:
    known = fact(4096, first=8192)

    assert table(known).answer(known.request) == WorkspaceAnswer(bytes=4096, first_bytes=8192)


def test_of_what_was_measured_twice_the_last_counts(fact: Fact) -> None:
    assert table(fact(4096), fact(512)).answer(fact(0).request) == WorkspaceAnswer(bytes=512, first_bytes=512)


def test_between_two_batches_it_is_interpolated_and_says_by_how_much_it_could_be_off(fact: Fact) -> None:
    found = table(fact(1000, batch=16), fact(3000, batch=64)).answer(fact(0, batch=40).request)

    assert found == WorkspaceAnswer(bytes=2000, first_bytes=2000, margin_bytes=1000, interpolated=True)


def test_the_nearest_neighbours_count(fact: Fact) -> None:
    known = [fact(size, batch=batch) for batch, size in ((1, 9), (16, 1600), (64, 6400), (512, 7))]

    found = table(*known).answer(fact(0, batch=32).request)

    assert found is not None
    assert found.bytes == 3200


def test_a_size_that_stands_in_several_tensors_is_one_size(fact: Fact) -> None:
    def backward(batch: int) -> dict[str, Any]:
        return {"shapes": ((batch, 64, 56, 56), (batch, 64, 56, 56), (64, 64, 3, 3))}

    known = table(fact(10, request=backward(16)), fact(30, request=backward(64)))

    found = known.answer(fact(0, request=backward(40)).request)
    assert found is not None
    assert (found.bytes, found.interpolated) == (20, True)


@pytest.mark.parametrize(
    "asked",
    [
        {"batch": 8},
        {"batch": 128},
        {"request": {"dtype": "float32"}},
        {"request": {"options": "padding=[0, 0]"}},
        {"request": {"kernel": "cuDNN convolution, gradient of its input"}},
        {"request": {"shapes": ((40, 64, 28, 28), (64, 64, 3, 3))}},
        {"request": {"shapes": ((40, 64, 56, 56), (64, 64, 5, 5))}},
    ],
    ids=str,
)
def test_beyond_the_neighbours_and_for_anything_else_there_is_no_answer(fact: Fact, asked: dict[str, Any]) -> None:
    known = table(fact(1000, batch=16), fact(3000, batch=64))

    assert known.answer(fact(0, **{"batch": 40, **asked}).request) is None


@pytest.mark.parametrize("other", [{"gpu": "H100-SXM-80GB"}, {"torch": "2.11.0"}], ids=str)
def test_another_gpu_or_torch_answers_nothing(fact: Fact, other: dict[str, str]) -> None:
    known = fact(4096, **other)

    assert not table(known)
    assert table(known).answer(known.request) is None


@given(sizes=st.dictionaries(st.integers(1, 512), st.integers(0, 2**40), min_size=1), batch=st.integers(1, 512))
def test_an_answer_lies_between_its_neighbours_and_its_margin_reaches_the_larger(
    sizes: dict[int, int], batch: int
) -> None:
    def at(count: int) -> WorkspaceRequest:
        return WorkspaceRequest(kernel="cuFFT", dtype="float32", shapes=((count, 8),))

    facts = [
        WorkspaceFact(
            request=at(count), bytes=size, first_bytes=size, gpu=GPU, torch="2.13", driver="", date="", command=""
        )
        for count, size in sizes.items()
    ]
    found = table(*facts).answer(at(batch))
    below, above = [each for each in sizes if each < batch], [each for each in sizes if each > batch]

    if batch in sizes:
        assert found == WorkspaceAnswer(bytes=sizes[batch], first_bytes=sizes[batch])
    elif not below or not above:
        assert found is None
    else:
        around = sizes[max(below)], sizes[min(above)]
        assert found is not None
        assert min(around) <= found.bytes <= max(around) == found.bytes + found.margin_bytes


def test_left_out_of_a_table_that_grows_evenly_every_inner_fact_is_interpolated_exactly(fact: Fact) -> None:
    known = [fact(100 * batch, batch=batch) for batch in (8, 16, 32, 64, 128)]

    for place in range(1, len(known) - 1):
        found = table(*known[:place], *known[place + 1 :]).answer(known[place].request)
        assert found is not None
        assert found.bytes == known[place].bytes


def test_a_line_is_read_as_it_was_written(fact: Fact, put: Callable[..., Path]) -> None:
    known = fact(4096, first=8192)
    put(known, fact(1, torch="2.11.0"))

    assert from_json(json.loads(json.dumps(to_json(known))), "here") == known
    assert workspace_table(GPU, "2.13.1").facts == (known,)
    assert not workspace_table("", "2.13")


def test_another_content_has_another_digest(fact: Fact) -> None:
    digests = [table(*facts).digest for facts in ((), (fact(1),), (fact(2),), (fact(1, batch=8),))]

    assert digests[0] == ""
    assert len(set(digests)) == 4
    assert table(fact(1), fact(5, batch=8)).digest == table(fact(5, batch=8), fact(1)).digest


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "workspaces-h200.jsonl:1: this line is no JSON"),
        ("[]", "this line is no object"),
        ('{"schema": "planner.plan/1"}', "'planner.plan/1' is no workspace"),
        ('{"schema": "planner.workspace/1", "bites": 1}', r"unknown: \['bites'\]"),
    ],
)
def test_a_damaged_file_is_refused_by_its_line(put: Callable[..., Path], line: str, said: str) -> None:
    (put() / "workspaces-h200.jsonl").write_text(line + "\n")

    with pytest.raises(FactsError, match=said):
        workspace_table(GPU, "2.13")


def test_sizes_below_zero_are_refused(fact: Fact) -> None:
    document = to_json(replace(fact(0), bytes=-1))

    with pytest.raises(FactsError, match="line 3: bytes: '-1' is no size"):
        from_json(document, "line 3")


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_FACTS", "/nowhere")

    with pytest.raises(FactsError, match="PLANNER_FACTS: '/nowhere' is no folder"):
        workspace_table(GPU, "2.13")

"""Whatever a reader is given, it reads it or says in a few lines why not, and takes little time and memory for it."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import time
from typing import Any

import pytest
from fuzz_settings import share
from hostile_documents import PIECES, YAML_PIECES, places, with_key, with_piece
from hypothesis import given
from hypothesis import strategies as st
from input_readers import READERS, answer_of
from machine_speed import takes_too_long
from valid_inputs import DOCUMENTS, TEXTS, snapshot

MOST_SECONDS = 2.0
"""Of processor time: the pieces are large, and the machine may be busy."""
BYTES = [bytes([each]) for each in b"\0\n\t \"'#%&*-:,[]{}<>\\!?|@`~.09aAeExXu\x80\xff"]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.sampled_from([-1, 0, 2**31, 2**48, 2**48 + 1, 2**63, 2**64, 10**6000, -(10**400), math.inf, (), [], {}]),
)  # fmt: skip


def test_what_is_broken_below_is_whole() -> None:
    assert {name: answer_of(READERS[name], text) for name, text in TEXTS.items()} == dict.fromkeys(READERS, "read")


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "spec_in_yaml"])
@share(0.055)
@given(data=st.data())
def test_a_document_with_anything_in_the_place_of_a_value(name: str, data: st.DataObject) -> None:
    read_soon(name, hostile(data, DOCUMENTS[name], _small(PIECES) if name == "spec_file" else PIECES))


@share(0.12)
@given(data=st.data())
def test_yaml_with_anything_in_the_place_of_a_value(data: st.DataObject) -> None:
    read_soon("spec_in_yaml", hostile(data, DOCUMENTS["spec_in_yaml"], _small(YAML_PIECES)))


@pytest.mark.parametrize("name", READERS)
@share(0.02)
@given(data=st.data())
def test_a_text_with_bytes_cut_out_and_put_in(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 4))):
        start, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 20))
        text = text[:start] + b"".join(data.draw(st.lists(st.sampled_from(BYTES), max_size=4))) + text[start + length :]
    read_soon(name, text)


@pytest.mark.parametrize("name", READERS)
@share(0.01)
@given(content=st.binary(max_size=80))
def test_any_bytes(name: str, content: bytes) -> None:
    read_soon(name, content)


@share(0.1)
@given(data=st.data())
def test_a_snapshot_with_any_value_in_the_place_of_another(data: st.DataObject) -> None:
    content: Any = copy.deepcopy(snapshot(4))
    *above, last = data.draw(st.sampled_from(list(places(content))))
    found = content
    for key in above:
        found = found[key]
    found[last] = data.draw(VALUES)
    read_soon("snapshot", pickle.dumps(content, protocol=data.draw(st.sampled_from([2, 4, 5]))))


def hostile(data: st.DataObject, document: dict[str, Any], pieces: tuple[str, ...]) -> bytes:
    """The document with a piece in one place, or with a key more."""
    path = data.draw(st.sampled_from(list(places(document))))
    if data.draw(st.booleans()) and isinstance(at(document, path), dict):
        key = json.dumps(data.draw(st.text(max_size=10)))
        return with_key(document, path, key).encode("utf-8", "surrogatepass")
    return with_piece(document, path, data.draw(st.sampled_from(pieces))).encode("utf-8", "surrogatepass")


def _small(pieces: tuple[str, ...]) -> tuple[str, ...]:
    """PyYAML takes most of a second for a large one; tests/service/fuzz/test_hostile_bodies.py has those."""
    return tuple(each for each in pieces if len(each) <= 6_000)


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def read_soon(name: str, content: bytes) -> None:
    """A second try decides: whatever else runs may have taken the first one's time."""
    if seconds_of(name, content) > MOST_SECONDS:
        assert not takes_too_long(seconds_of(name, content), MOST_SECONDS)


def seconds_of(name: str, content: bytes) -> float:
    """Without passes of the garbage collector, which look through all that the tests of this process hold."""
    gc.disable()
    began = time.process_time()
    try:
        answer_of(READERS[name], content)
        return time.process_time() - began
    finally:
        gc.enable()

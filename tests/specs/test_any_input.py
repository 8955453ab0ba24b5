"""Whatever arrives, it is a job or a message to a person, never a fault of planner's own."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.job.loading import load_document, load_job
from planner.job.schema import Job

SPEC = """\
metadata: {name: sft, team: nlp}
model:
  factory: my.models:build
  factory_arguments: {width: 64, deep: [1, 2]}
train:
  micro_batch_size: 2
  inputs: {pixels: &image {shape: [3, 8, 8]}, mask: {<<: *image, dtype: bool}}
  optimizer: {name: AdamW, lr: 1e-4}
  recompute: {every: 2}
  eval: {every: 10}
parallel: {dp_replicate: {degree: 2, bucket_cap_mb: 25}}
cluster: {gpus_per_node: 2, gpu: {total_bytes: 16GiB, arch: sm_75}}
software: {torch: 2.13}
"""
PIECES = [*"{}[]:,&*!|>%@`'\"\\-?#\n\t \0\x85é~", "<<", "null", "-1", "1e999", ".nan", "!!int", "true", "0x", "*image"]
WORDS = ["model", "train", "cluster", "gpu", "name", "optimizer", "hf_config", "decoder", "inputs", "shape", "schema"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


def loaded(content: bytes) -> Job | None:
    """None for input that was refused; any other exception fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job"
        path.write_bytes(content)
        with contextlib.suppress(SpecError):
            return load_job(path)
        return None


def test_what_is_broken_below_is_whole() -> None:
    assert loaded(SPEC.encode()) is not None


@given(
    st.lists(st.tuples(st.integers(0, len(SPEC)), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=4)
)
@settings(max_examples=200, deadline=None)
def test_a_spec_with_anything_put_in_its_place(cuts: list[tuple[int, int, str]]) -> None:
    text = SPEC
    for start, length, piece in cuts:
        text = text[:start] + piece + text[start + length :]

    loaded(text.encode())


@given(st.binary(max_size=60))
@example(b"\xff\xfe{")
@example(b"\xef\xbb\xbf")
@settings(max_examples=150, deadline=None)
def test_a_file_of_any_bytes(content: bytes) -> None:
    loaded(content)


@given(st.sampled_from(["model", "train", "parallel", "cluster", "software", "allocator", "metadata"]), values)
@settings(max_examples=300, deadline=None)
def test_a_document_with_any_value_in_a_section(section: str, value: Any) -> None:
    document = {"model": {"factory": "m:build"}, "cluster": {"gpu": "T4-16GB"}, section: value}

    with contextlib.suppress(SpecError):
        load_document(document)


@given(st.text(max_size=20), values)
@settings(max_examples=200, deadline=None)
def test_any_key_of_the_training_with_any_value(key: str, value: Any) -> None:
    document = {"model": {"factory": "m:build"}, "cluster": {"gpu": "T4-16GB"}, "train": {key: value}}

    with contextlib.suppress(SpecError):
        load_document(document)

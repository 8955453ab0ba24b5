"""A job survives every way of writing it down, and its identity is what decides its memory."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.job import schema as jobs
from planner.job.json_text import canonical_json
from planner.job.loading import bundle, bundle_text, document, load_bundle, load_document, load_job, trace_id
from planner.job.printing import job_yaml, short_yaml
from planner.job.schema import Job

SOFTWARE = {"planner": "0.1.0", "torch": "2.13.0", "transformers": "5.23"}

counts = st.integers(1, 2**20)
dtypes = st.sampled_from(["float64", "float32", "bfloat16", "float16"])
texts = st.text(max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts.filter(lambda name: name != "name"), plain, max_size=3)
configs = st.dictionaries(texts, plain, max_size=3).map(lambda config: {**config, "model_type": "llama"})
decoders = st.builds(
    lambda heads, **sizes: jobs.Decoder(hidden=64 * heads, heads=heads, kv_heads=heads, **sizes),
    heads=st.integers(1, 64),
    layers=counts,
    ffn=counts,
    vocab=counts,
    tie_embeddings=st.booleans(),
)
models = (
    st.builds(jobs.Model, hf_config=configs, head=st.sampled_from(["", "causal_lm"]), parameter_dtype=dtypes)
    | st.builds(jobs.Model, factory=st.just("my.models:build"), factory_arguments=arguments, blocks=texts)
    | st.builds(jobs.Model, decoder=decoders, attention=st.sampled_from(["sdpa", "eager"]))
)
recomputes = st.sampled_from(["none", "full", "selective"]).map(lambda mode: jobs.Recompute(mode=mode)) | st.builds(
    jobs.Recompute, mode=st.just("every"), every=counts
)
trains = st.builds(
    jobs.Train,
    micro_batch_size=counts,
    sequence_length=counts,
    gradient_accumulation_steps=counts,
    precision=st.sampled_from(["none", "bf16_autocast", "fp16_autocast"]),
    loss=st.builds(jobs.Loss, name=st.sampled_from(["cross_entropy", "mse", "sum"]), dtype=dtypes, chunks=counts),
    optimizer=st.builds(jobs.Optimizer, name=st.sampled_from(["SGD", "AdamW"]), arguments=arguments),
    recompute=recomputes,
    gradient_clipping=st.floats(0, 100),
    zero_grad_set_to_none=st.booleans(),
    checkpoint_load=st.none() | st.builds(jobs.CheckpointLoad, optimizer=st.booleans()),
    eval=st.none() | st.builds(jobs.Eval, micro_batch_size=counts, every=counts),
    iterations=counts,
)
inputs = st.dictionaries(
    texts, st.builds(jobs.Input, shape=st.lists(counts, max_size=4).map(tuple), dtype=dtypes), max_size=2
)
replicas = st.builds(
    jobs.DpReplicate,
    degree=st.just(8),
    bucket_cap_mb=st.floats(0.001, 1000),
    gradient_as_bucket_view=st.booleans(),
    arguments=st.just({}) | st.fixed_dictionaries({"find_unused_parameters": st.booleans()}),
)
parallels = st.builds(
    jobs.Parallel,
    dp_replicate=replicas,
    dp_shard=st.builds(jobs.DpShard, reshard_after_forward=st.booleans() | counts),
    pp=st.builds(jobs.Pp, split=st.lists(counts, max_size=3).map(tuple)),
    tp=st.builds(jobs.Tp, sequence_parallel=st.booleans()),
)
gpus = st.just(jobs.Gpu()) | st.builds(
    jobs.Gpu, name=texts, total_bytes=st.integers(2**30, 2**40), arch=st.sampled_from(["sm_90", "gfx942"])
)
clusters = st.builds(
    jobs.Cluster, nodes=st.just(2), gpus_per_node=st.just(4), gpu=gpus, held_by_others_bytes=st.integers(0, 2**29)
)


def with_inputs_where_they_may_be(job: Job, found: dict[str, jobs.Input]) -> Job:
    if job.model.decoder is not None:
        return job
    return dataclasses.replace(job, train=dataclasses.replace(job.train, inputs=found))


valid_jobs = st.builds(
    with_inputs_where_they_may_be,
    st.builds(
        Job,
        metadata=st.builds(jobs.Metadata, name=texts, team=texts, queue=texts),
        model=models,
        train=trains,
        parallel=parallels,
        cluster=clusters,
        software=st.builds(jobs.Software, torch=st.sampled_from(["2.10", "2.13.0+cu130"])),
        allocator=st.builds(jobs.Allocator, conf=texts),
    ),
    inputs,
)


def small_job(**changes: Any) -> Job:
    decoder = jobs.Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=1000)
    gpu = jobs.Gpu(total_bytes=2**34, arch="sm_80")
    parts = {
        "model": jobs.Model(decoder=decoder),
        "train": jobs.Train(sequence_length=8),
        "cluster": jobs.Cluster(gpu=gpu),
    }
    return Job(**(parts | changes))


@given(valid_jobs)
@settings(max_examples=100, deadline=None)
def test_a_job_is_the_same_after_its_bundle_was_sorted_by_something(job: Job) -> None:
    again = load_bundle(json.loads(json.dumps(bundle(job), sort_keys=True)))

    assert again == job
    assert trace_id(again, SOFTWARE) == trace_id(job, SOFTWARE)


@pytest.mark.parametrize("printed", [job_yaml, short_yaml])
@given(job=valid_jobs)
@settings(max_examples=100, deadline=None)
def test_a_job_is_the_same_after_it_was_printed_as_a_spec(job: Job, printed: Callable[[Job], str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(printed(job), encoding="utf-8")
        again = load_job(path)
    if job.model.factory:  # which is looked for in a folder: in the spec's, unless the spec names another
        assert again.model.factory_path == str(path.resolve().parent)
        again = dataclasses.replace(again, model=dataclasses.replace(again.model, factory_path=""))

    assert again == job


@pytest.mark.parametrize(
    "text",
    ["no", "yes", "on", "null", "~", "1e5", "1.5", "010", "0x1F", "1_000", "1:30", "2024-01-01", ".inf", "<<", "=", ""],
)
def test_texts_that_yaml_would_take_for_something_else_are_printed_in_quotes(text: str) -> None:
    job = small_job(train=jobs.Train(sequence_length=8, optimizer=jobs.Optimizer(arguments={"kind": text})))

    assert document_of_printed(job) == document(job)


def document_of_printed(job: Job) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(job_yaml(job), encoding="utf-8")
        return document(load_job(path))


def test_a_bundle_says_its_schema_first_and_every_section() -> None:
    assert list(bundle(small_job())) == [
        "schema",
        "metadata",
        "model",
        "train",
        "trainer",
        "parallel",
        "cluster",
        "software",
        "allocator",
    ]


def test_a_bundle_is_strict_json_even_with_an_infinite_number() -> None:
    config = {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]}

    text = bundle_text(small_job(model=jobs.Model(hf_config=config)))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refuse)
    assert found["model"]["hf_config"]["time_step_limit"] == [0.0, {"__float__": "Infinity"}]


def test_a_bundle_without_some_defaults_still_gives_the_job() -> None:
    short = {"schema": "planner.bundle/1", "model": {"factory": "m:build"}, "cluster": {"gpu": "T4-16GB"}}

    assert load_bundle(short).train == jobs.Train()


def test_a_bundle_of_an_earlier_planner_is_read_with_the_keys_that_say_nothing() -> None:
    job = small_job(train=jobs.Train(sequence_length=8, eval=jobs.Eval()))
    earlier = bundle(job)
    of_eval = {"batches": 1, "gather": "", "accumulation_steps": 0, "generate": None}
    train = {**earlier["train"], "retains": "", "eval": {**earlier["train"]["eval"], **of_eval}}

    assert load_bundle({**earlier, "post_training": None, "train": train}) == job
    with pytest.raises(SpecError, match="unknown key `retains`"):
        load_bundle({**earlier, "train": {**train, "retains": "loss"}})


def test_a_document_without_a_schema_is_no_bundle() -> None:
    with pytest.raises(SpecError, match="the schema is None"):
        load_bundle({"model": {"factory": "m:build"}})
    assert load_document({"model": {"factory": "m:build"}, "cluster": {"gpu": "T4-16GB"}}).model.factory == "m:build"


def test_a_stored_bundle_with_the_key_that_said_whose_step_it_is_is_still_read() -> None:
    stored = bundle(small_job())

    assert load_bundle({**stored, "software": {**stored["software"], "step": "torch"}}) == small_job()
    with pytest.raises(SpecError, match="unknown key"):
        load_bundle({**stored, "software": {**stored["software"], "step": "megatron"}})


@pytest.mark.parametrize(
    ("key", "usual", "other"), [("kind", "fsdp2", "fsdp1"), ("wrap_size", 0, 1000), ("limit_all_gathers", True, False)]
)
def test_a_stored_bundle_with_keys_of_fsdp1_is_read_where_they_say_nothing(key: str, usual: Any, other: Any) -> None:
    stored = bundle(small_job())

    def with_value(value: Any) -> Mapping[str, Any]:
        shard = {**stored["parallel"]["dp_shard"], key: value}
        return {**stored, "parallel": {**stored["parallel"], "dp_shard": shard}}

    assert load_bundle(with_value(usual)) == small_job()
    with pytest.raises(SpecError, match=f"unknown key `{key}` in parallel.dp_shard") as refusal:
        load_bundle(with_value(other))
    assert "fsdp_version: 1" in refusal.value.remedy


@pytest.mark.parametrize("changed", SOFTWARE)
def test_other_software_is_another_trace(changed: str) -> None:
    assert trace_id(small_job(), {**SOFTWARE, changed: "other"}) != trace_id(small_job(), SOFTWARE)


def test_the_identity_of_a_trace_does_not_change_by_accident() -> None:
    """A stored answer is found by it: if this fails on purpose, stored answers are lost."""
    job = small_job(software=jobs.Software(torch="2.13"))  # whatever torch runs the test

    assert trace_id(job, SOFTWARE) == "a83407fbeb6e312c03ccfa00293cbd7ff6d4718eb2f6c7b1a2d4f0f8f8372f78"


def test_a_whole_number_where_a_fraction_may_stand_is_the_same_job() -> None:
    whole = small_job(train=jobs.Train(sequence_length=8, gradient_clipping=1))
    fraction = small_job(train=jobs.Train(sequence_length=8, gradient_clipping=1.0))

    assert trace_id(whole, SOFTWARE) == trace_id(fraction, SOFTWARE)


@given(plain)
def test_canonical_json_is_one_ascii_line_that_does_not_hinge_on_order(data: Any) -> None:
    text = canonical_json(data)

    assert text.isascii()
    assert "\n" not in text
    assert text == canonical_json(turned_around(data))


def turned_around(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: turned_around(data[key]) for key in reversed(data)}
    if isinstance(data, list):
        return [turned_around(item) for item in data]
    return data

"""A few words come over HTTP, and the spec that they stand for goes; nothing is planned, and no file is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from planner.hardware import catalog
from planner.job import hf_config
from planner.job.loading import load_bundle, load_yaml
from planner.service.http.openapi import EXAMPLE_JOB

Asgi = Callable[..., TestClient]


def test_a_model_and_gpus_by_their_names_become_a_spec(asgi: Asgi) -> None:
    words = {"gpus": "4xH100", "fsdp": "rest", "seq": "4k", "batch": 2, "lora": "r=16"}
    found = asgi().post("/v1/specs", json={"model": "Qwen/Qwen3-8B", "words": words}).json()

    job = load_bundle(found["job"])
    assert load_yaml(found["spec"]) == job
    assert job.model.hf_config == hf_config.models()["Qwen/Qwen3-8B"].config
    assert (job.parallel.dp_shard.degree, job.train.sequence_length, job.train.micro_batch_size) == (4, 4096, 2)
    assert found["taken"] == [
        "train.precision fsdp_mixed (--precision bf16, fp16 or fp32)",
        "the model in bfloat16 (--set model.parameter_dtype=float32)",
    ]
    assert found["notes"][0].startswith("the GPU H100 is taken as H100-SXM-80GB")


def test_values_are_set_in_a_job_as_on_the_command_line(asgi: Asgi) -> None:
    changes = {
        "train.micro_batch_size": 8,
        "cluster.gpu": "A100-SXM-40GB",
        "allocator.conf": "expandable_segments:True",
    }
    client = asgi()
    first = client.post("/v1/specs", json={"job": EXAMPLE_JOB}).json()
    job = load_bundle(client.post("/v1/specs", json={"job": first["job"], "set": changes}).json()["job"])

    assert job.train.micro_batch_size == 8
    assert job.cluster.gpu.total_bytes == catalog.gpus()["A100-SXM-40GB"].total_bytes
    assert job.allocator.conf == changes["allocator.conf"]


@pytest.mark.parametrize(
    ("body", "place", "problem"),
    [
        ({}, "", "nothing says which job"),
        ({"model": "gpt2", "job": EXAMPLE_JOB}, "", "model and job both say which job"),
        ({"model": "Qwen/Qwen3-9B"}, "the model", 'there is no model "Qwen/Qwen3-9B" among those that planner knows'),
        ({"model": "/etc/passwd"}, "the model", 'model.hf_config is the path "/etc/passwd"'),
        ({"model": "../config.json"}, "the model", 'model.hf_config is the path "../config.json"'),
        ({"spec": "model: {hf_config: /etc/passwd}"}, "standard input:1:20", "model.hf_config is the path"),
        ({"model": "gpt2", "words": {"gpus": "4xH101"}}, "--gpus", "there is no GPU `H101` in the catalog"),
        ({"model": "gpt2", "words": {"gpu": 3}}, "words.gpu", "words.gpu is 3"),
        ({"model": "gpt2", "word": {}}, "word", "there is no key 'word'"),
        ({"job": EXAMPLE_JOB, "set": {"train.micro_batch": 1}}, "train.micro_batch", "unknown key `micro_batch`"),
        ({"job": EXAMPLE_JOB, "set": {"model.hf_config": "/x.json"}}, "model.hf_config", "model.hf_config is the path"),
        ({"job": EXAMPLE_JOB, "set": {"train..x": 1}}, "set", "'train..x' is not a key"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(asgi: Asgi, body: dict[str, Any], place: str, problem: str) -> None:
    answer = asgi().post("/v1/specs", json=body)
    said = answer.json()

    assert answer.status_code == 422, said
    assert said["problem"].startswith(problem)
    assert said.get("place", "") == place


def test_a_key_of_thousands_of_parts_is_refused(asgi: Asgi) -> None:
    body = {"model": "Qwen/Qwen3-8B", "words": {"gpus": "4xH100"}, "set": {"a." * 5000 + "b": 1}}

    answer = asgi().post("/v1/specs", json=body)

    assert (answer.status_code, answer.json()["allowed"]) == (422, "a key of the spec, at most 100 deep")


def test_what_may_be_named_is_listed(asgi: Asgi) -> None:
    client = asgi()

    assert [each["name"] for each in client.get("/v1/models").json()["models"]] == list(hf_config.models())
    assert {each["name"]: each["total_bytes"] for each in client.get("/v1/gpus").json()["gpus"]} == {
        name: gpu.total_bytes for name, gpu in catalog.gpus().items()
    }

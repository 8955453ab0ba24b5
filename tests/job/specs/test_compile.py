"""`train.compile` in all ways to write it."""

from __future__ import annotations

import pytest

from planner.job.loading import bundle, load_bundle, load_yaml
from planner.job.schema import Compile

_JOB = """
model: {{decoder: {{layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn: 128, vocab: 100}}}}
train: {{sequence_length: 16, compile: {written}}}
parallel: {{dp_shard: {shards}}}
cluster: {{gpus_per_node: {shards}, gpu: H100-SXM-80GB}}
"""


def compiled(written: str, shards: int = 1) -> Compile | None:
    return load_yaml(_JOB.format(written=written, shards=shards)).train.compile


@pytest.mark.parametrize("written", ["false", "null"])
def test_nothing_is_compiled(written: str) -> None:
    assert compiled(written) is None


@pytest.mark.parametrize(("shards", "scope"), [(1, "model"), (8, "blocks")])
def test_true_is_the_model_or_where_it_shards_the_blocks(shards: int, scope: str) -> None:
    assert compiled("true", shards) == Compile(scope=(scope,))
    assert compiled("{mode: default}", shards) == Compile(scope=(scope,))


def test_a_scope_is_a_name_or_several() -> None:
    assert compiled("optimizer") == Compile(scope=("optimizer",))
    assert compiled("[blocks, loss]") == compiled("{scope: [blocks, loss]}") == Compile(scope=("blocks", "loss"))


def test_arguments_are_those_of_torch_compile() -> None:
    passed_on = {"fullgraph": True, "dynamic": False}
    asked = compiled("{scope: loss, mode: max-autotune-no-cudagraphs, fullgraph: true, dynamic: false}")
    assert asked == Compile(scope=("loss",), mode="max-autotune-no-cudagraphs", arguments=passed_on)


def test_a_bundle_gives_the_job_back_also_one_of_before_scopes() -> None:
    job = load_yaml(_JOB.format(written="[model, loss]", shards=1))
    assert load_bundle(bundle(job)) == job
    older = bundle(job)
    older["train"]["compile"] = True
    assert load_bundle(older).train.compile == Compile(scope=("model",))

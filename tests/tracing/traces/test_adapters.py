"""LoRA by peft: for real on a CPU beside paper, and counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cpu_runs import Both, assert_exact, both_ways

from planner.errors import SpecError
from planner.events import Category
from planner.job.schema import Adapter, Cluster, Gpu, Job, Metadata, Model, Optimizer, Train
from planner.planning import identity
from planner.planning.plan import plan_job
from planner.report.statement import TrainedAdapter
from planner.tracing.job_program import trace
from planner.training.models.build import build, materialize
from planner.truth.measuring.measurement_lines import most_by_category

_CONFIG = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 384,
}  # fmt: skip


def lora(name: str, **adapter: Any) -> Job:
    return Job(
        metadata=Metadata(name=name),
        model=Model(hf_config=_CONFIG, adapter=Adapter(r=4, **adapter)),
        train=Train(micro_batch_size=4, sequence_length=64, iterations=2, optimizer=Optimizer(name="AdamW")),
    )


JOBS = [
    lora("queries", target_modules=("q_proj", "v_proj")),
    lora("default"),
    lora("dora", kind="dora"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(JOBS, 1)], "adapters")


@pytest.mark.parametrize("name", [job.metadata.name for job in JOBS])
def test_what_is_kept_is_exact(runs: Both, name: str) -> None:
    assert_exact(*runs[name, 0])


def test_modules_that_the_model_does_not_have_are_refused_in_pefts_words() -> None:
    with pytest.raises(SpecError, match="peft refuses the adapter: Target modules"):
        trace(lora("wrong", target_modules=("query",)), target="sm_90")


def test_all_linear_layers_are_those_of_the_layers_and_the_plan_says_what_is_trained() -> None:
    """Rank 4 beside queries and outputs 128 x 128, keys and values 128 x 64, three of 128 x 384, of two layers."""
    gpu = Gpu(total_bytes=2**36, arch="sm_90")
    job = replace(lora("all", target_modules=("all-linear",)), cluster=Cluster(gpu=gpu))

    elements = 2 * 4 * (2 * 256 + 2 * 192 + 3 * 512)
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    adapter = plan_job(job).plan.adapter
    assert adapter == TrainedAdapter(kind="lora", rank=4, modules=names, parameters=elements)


def test_an_architecture_without_a_default_is_told_what_to_write() -> None:
    job = lora("unknown")
    config = {**_CONFIG, "model_type": "olmo2"}

    with pytest.raises(SpecError, match="peft refuses the adapter") as refusal:
        trace(replace(job, model=replace(job.model, hf_config=config)), target="sm_90")

    assert "--lora target=all-linear" in refusal.value.remedy


def test_four_bits_take_half_a_byte_and_their_scales() -> None:
    """Both layers: queries and outputs 128 x 128, keys and values 64 x 128, three of 384 x 128."""
    jobs = lora("default"), lora("four-bits", kind="qlora")
    whole, packed = (most_by_category(trace(job, target="sm_90").events)[Category.PARAMETER] for job in jobs)

    elements = [2 * 128 * 128, 2 * 64 * 128, 3 * 384 * 128]
    scales = [count // 64 for count in elements]
    tables = 2 * 7 * 4 * (16 + 256 + 1)
    nested = 2 * 4 * (2 * 1 + 2 * 1 + 3 * 3)
    assert whole - packed == 2 * (4 * sum(elements) - sum(elements) // 2 - sum(scales)) - tables - nested


def test_what_is_not_packed_is_float32_as_peft_prepares_it() -> None:
    adapter = Adapter(r=4, kind="qlora")
    model = build(Model(hf_config=_CONFIG, parameter_dtype="bfloat16", adapter=adapter), torch.device("cpu"))

    dtypes = {name: each.dtype for name, each in model.named_parameters()}
    kinds = {
        "packed": {dtype for name, dtype in dtypes.items() if "_proj" in name and "lora_" not in name},
        "adapters": {dtype for name, dtype in dtypes.items() if "lora_" in name},
        "the rest": {dtype for name, dtype in dtypes.items() if "_proj" not in name},
    }
    assert kinds == {"packed": {torch.uint8}, "adapters": {torch.float32}, "the rest": {torch.float32}}


def test_stored_traces_hinge_on_the_version_of_peft() -> None:
    plain = replace(JOBS[0], model=replace(JOBS[0].model, adapter=None))
    other = {**identity.every_version(), "peft": "another"}
    before = [identity.trace_id_of(each) for each in (JOBS[0], plain)]

    after = [identity.trace_id_of(each, other) for each in (JOBS[0], plain)]

    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


def test_what_is_tied_stays_tied_when_it_is_given_memory() -> None:
    model = build(Model(hf_config={**_CONFIG, "tie_word_embeddings": True}), torch.device("meta"))

    materialize(model, torch.device("cpu"))

    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight

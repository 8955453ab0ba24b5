"""The bound of a job lies below its plan: for the examples, and for any layout of a small decoder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.job.bound.lower_bound import MOST_BYTES, Bound, lower_bound
from planner.job.layout import Mesh, rank_classes
from planner.job.loading import load_document, load_job
from planner.job.overhead import outside_of
from planner.job.pipeline_schedules import stage_count
from planner.job.schema import Job
from planner.planning.plan import plan_from_traces, plan_job
from planner.planning.planned_classes import trace_class
from planner.report.statement import Plan, Verdict
from planner.units import GIB
from planner.upstream import torch_releases

EXAMPLES = Path(__file__).parents[3] / "examples"
RECORDED = json.loads((Path(__file__).parents[2] / "data" / "recorded_peaks.json").read_text())
"""What `planner plan` said of the examples: device and allocated bytes of the fullest rank."""
NAMES = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml"))
MANY_CLASSES = "llama-3.1-405b-pp16-tp8.yaml"
"""A trace for each of its sixteen stages: for minutes."""
OF_TORCHAO = "llama-3-8b-optimizer-in-backward.yaml"
"""Which the tests' environment has not."""
JOBS = {name: load_job(EXAMPLES / name) for name in NAMES}
BY_CONFIG = [name for name, job in JOBS.items() if not job.model.factory and job.trainer is None]


def held(bound: Bound) -> int:
    return bound.least_bytes - bound.outside_bytes


def device_bytes(plan: Plan) -> int:
    return max(each.peak.device_bytes for each in plan.rank_classes)


def allocated_bytes(plan: Plan) -> int:
    return max(each.peak.allocated_bytes for each in plan.rank_classes)


def test_every_example_is_recorded() -> None:
    assert sorted(RECORDED) == BY_CONFIG


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(BY_CONFIG)))
def test_of_examples_that_bring_code_or_files_no_more_than_any_plan_says_is_known(name: str) -> None:
    """Whatever is traced, a plan has what lies outside the allocator on top."""
    job = JOBS[name]

    assert 0 < lower_bound(job).least_bytes <= outside_of(job).total_bytes


@pytest.mark.parametrize("name", BY_CONFIG)
def test_the_bound_lies_below_the_plan_of_each_example(name: str) -> None:
    bound = lower_bound(load_job(EXAMPLES / name))

    assert bound.least_bytes <= RECORDED[name]["device_bytes"]
    assert held(bound) <= RECORDED[name]["allocated_bytes"]


def shortened(job: Job) -> Job:
    """The same with few layers and tokens."""
    layers = max(2 * stage_count(job.parallel.pp), 3)  # embedding and head count as a layer each
    train = dataclasses.replace(job.train, iterations=2, sequence_length=job.train.sequence_length and 256)
    if job.train.eval is not None:
        train = dataclasses.replace(train, eval=None)
    model = job.model
    if model.decoder is not None:
        model = dataclasses.replace(model, decoder=dataclasses.replace(model.decoder, layers=layers))
    elif model.hf_config is not None:
        keys = [key for key in ("num_hidden_layers", "n_layer") if key in model.hf_config]
        model = dataclasses.replace(model, hf_config={**model.hf_config, **dict.fromkeys(keys, layers)})
    pp = dataclasses.replace(job.parallel.pp, split=())
    return dataclasses.replace(job, model=model, train=train, parallel=dataclasses.replace(job.parallel, pp=pp))


@pytest.mark.parametrize("name", [name for name in BY_CONFIG if name not in (MANY_CLASSES, OF_TORCHAO)])
def test_the_bound_lies_below_a_plan_that_is_made_now(name: str) -> None:
    job = shortened(load_job(EXAMPLES / name))
    if job.model.adapter is not None:
        pytest.importorskip("peft")
    plan, bound = plan_job(job).plan, lower_bound(job)

    assert bound.least_bytes <= device_bytes(plan)
    assert held(bound) <= allocated_bytes(plan)


@pytest.mark.parametrize(
    ("name", "share"),
    [("llama-3-70b-sft", 0.9), ("nemotron-4b-ddp", 0.9), ("deepseek-v2-lite-ep", 0.7), ("gpt2-xl", 0.7)],
)
def test_where_weights_decide_the_bound_is_most_of_the_plan(name: str, share: float) -> None:
    bound = lower_bound(load_job(EXAMPLES / f"{name}.yaml"))

    assert bound.least_bytes >= share * RECORDED[f"{name}.yaml"]["device_bytes"]


layouts = st.sampled_from(
    [
        {},
        {"dp_replicate": 2},
        {"dp_replicate": {"degree": 2, "gradient_as_bucket_view": True}},
        {"dp_replicate": {"degree": 2, "zero_redundancy_optimizer": True}},
        {"dp_replicate": 2, "dp_shard": 2},
        {"dp_shard": 3},
        {"dp_shard": {"degree": 2, "offload": "cpu"}},
        {"dp_shard": {"degree": 2, "reshard_after_forward": False}, "tp": 2},
        {"tp": 2},
        {"cp": 2},
        {"pp": 2},
        {"pp": 2, "dp_shard": 2},
    ]
)
trains = st.fixed_dictionaries(
    {
        "optimizer": st.sampled_from(
            [
                {"name": "AdamW"}, {"name": "Adam", "amsgrad": True, "foreach": False}, {"name": "SGD"},
                {"name": "SGD", "momentum": 0.9}, {"name": "Adafactor"}, {"name": "RMSprop", "centered": True},
                {"name": "bitsandbytes.AdamW8bit"},
            ]
        ),
        "gradient_accumulation_steps": st.just(2),
    },
    optional={
        "optimizer_in_backward": st.booleans(),
        "gradient_clipping": st.just(1.0),
        "zero_grad_set_to_none": st.booleans(),
        "recompute": st.just("full"),
    },
)  # fmt: skip
models = st.fixed_dictionaries(
    {
        "decoder": st.fixed_dictionaries(
            {"layers": st.just(2), "hidden": st.just(256), "heads": st.just(4),
             "kv_heads": st.sampled_from([2, 4]), "ffn": st.just(640), "vocab": st.just(1000),
             "tie_embeddings": st.booleans()},
        ),
        "parameter_dtype": st.sampled_from(["float32", "bfloat16"]),
    }
)  # fmt: skip


def degree(part: Any) -> int:
    return int(part["degree"] if isinstance(part, dict) else part)


@settings(max_examples=8, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture])  # fmt: skip
@given(model=models, train=trains, parallel=layouts)
def test_the_bound_lies_below_the_plan_of_any_layout(
    model: dict[str, Any], train: dict[str, Any], parallel: dict[str, Any]
) -> None:
    ranks = 1
    for part in parallel.values():
        ranks *= degree(part)
    document = {
        "model": model, "parallel": parallel, "train": {"sequence_length": 32, "iterations": 2, **train},
        "cluster": {"gpus_per_node": ranks, "gpu": "H100-SXM-80GB"},
    }  # fmt: skip
    try:
        job = load_document(document)
    except PlannerError:  # what does not go together
        assume(False)
        return
    try:
        classes = rank_classes(Mesh.of(job.parallel))
        traces = [traced for rank_class in classes for traced in trace_class(job, rank_class)]
    except PlannerError:  # what torch refuses
        return
    bound, plan = lower_bound(job), plan_from_traces(job, traces).plan

    assert bound.least_bytes <= device_bytes(plan)
    assert held(bound) <= allocated_bytes(plan)
    # And on a GPU that has less than the bound, the plan says so too.
    gpu = dataclasses.replace(job.cluster.gpu, name="", total_bytes=bound.least_bytes - 1)
    smaller = dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, gpu=gpu))
    bound = lower_bound(smaller)
    assert not bound.exceeds or plan_from_traces(smaller, traces).plan.verdict is Verdict.EXCEEDS


JOB: dict[str, Any] = {
    "model": {"decoder": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}},
    "train": {"sequence_length": 8192, "optimizer": {"name": "AdamW"}},
    "parallel": {"dp_replicate": 8},
    "cluster": {"gpus_per_node": 8, "gpu": "H100-SXM-80GB"},
}
LLAMA_8B = 8_030_261_248


def test_an_8b_job_by_data_parallelism_is_hopeless_on_80_gib() -> None:
    """Parameters, gradients, their copy in DDP's buckets and two states, all in float32."""
    bound = lower_bound(load_document(JOB))

    assert bound.exceeds
    assert bound.least_bytes - bound.capacity_bytes > 20 * GIB


@pytest.mark.parametrize(
    ("change", "parameters", "gradients", "state"),
    [
        ({}, 4, 8, 8),
        ({"parallel": {"dp_replicate": {"degree": 8, "gradient_as_bucket_view": True}}}, 4, 4, 8),
        ({"parallel": {"dp_replicate": {"degree": 8, "zero_redundancy_optimizer": True}}}, 4, 8, 1),
        ({"parallel": {"dp_shard": 8}}, 0.5, 0.5, 1),
        ({"parallel": {"dp_shard": 8}, "train": {**JOB["train"], "optimizer_in_backward": True}}, 0.5, 0, 1),
        ({"parallel": {"dp_replicate": 2, "dp_shard": 4}}, 1, 1, 2),
        ({"parallel": {"dp_shard": {"degree": 8, "offload": "cpu"}}}, 0, 0, 0),
        ({"parallel": {"tp": 8}}, 0.5, 0.5, 1),
        ({"parallel": {"dp_shard": 2, "cp": 4}}, 0.5, 0.5, 1),
        ({"train": {"sequence_length": 8192, "optimizer": {"name": "SGD"}}}, 4, 8, 0),
    ],
)
def test_each_layout_has_its_share(change: dict[str, Any], parameters: float, gradients: float, state: float) -> None:
    bound = lower_bound(load_document({**JOB, **change}))
    found = (bound.parameter_bytes, bound.gradient_bytes, bound.optimizer_state_bytes)

    assert found == tuple(int(each * LLAMA_8B) for each in (parameters, gradients, state))


@pytest.mark.parametrize(("degree", "micro_batches", "split"), [(2, 2, []), (3, 6, []), (2, 4, [1, 2, 2, 1, 3, 1])])
def test_an_interleaved_pipeline_has_what_its_warm_up_saved(degree: int, micro_batches: int, split: list[int]) -> None:
    decoder = {"layers": 10, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 640, "vocab": 256}
    job = load_document({
        "model": {"decoder": decoder, "parameter_dtype": "bfloat16"},
        "train": {"sequence_length": 1024, "iterations": 2, "gradient_accumulation_steps": micro_batches,
                  "optimizer": {"name": "SGD"}},
        "parallel": {"pp": {"degree": degree, "schedule": "Interleaved1F1B", "split": split}},
        "cluster": {"gpus_per_node": degree, "gpu": "H100-SXM-80GB"},
    })  # fmt: skip
    plan, bound = plan_job(job).plan, lower_bound(job)

    assert held(bound) <= allocated_bytes(plan)
    # Before 2.10 schedules also keep the outputs of all micro-batches, which the bound leaves out.
    assert held(bound) >= (0.4 if torch_releases.since(2, 10) else 0.3) * allocated_bytes(plan)


@pytest.mark.parametrize(("kind", "element_bytes"), [("lora", 2), ("dora", 2), ("qlora", 0.5)])
def test_an_adapter_leaves_the_model_frozen(kind: str, element_bytes: float) -> None:
    job = load_job(EXAMPLES / "llama-3-8b-lora.yaml")
    assert job.model.adapter is not None
    adapter = dataclasses.replace(job.model.adapter, kind=kind)
    bound = lower_bound(dataclasses.replace(job, model=dataclasses.replace(job.model, adapter=adapter)))

    assert bound.parameter_bytes == int(element_bytes * LLAMA_8B)
    assert (bound.gradient_bytes, bound.optimizer_state_bytes) == (0, 0)


def test_embeddings_that_are_given_leave_a_models_own_without_a_gradient() -> None:
    job = load_job(EXAMPLES / "llama-3-8b-sft.yaml")
    inputs = {"inputs_embeds": {"shape": [128, 4096], "dtype": "bfloat16"}}
    given_embeddings = dataclasses.replace(job, train=dataclasses.replace(job.train, inputs=inputs))  # type: ignore[arg-type]

    bound = lower_bound(given_embeddings)
    assert (bound.parameter_bytes, bound.gradient_bytes, bound.optimizer_state_bytes) == (2 * LLAMA_8B, 0, 0)


def test_of_code_only_what_lies_outside_the_allocator_is_known() -> None:
    job = load_document({
        "model": {"factory": "shop:model"}, "train": {"inputs": {"x": {"shape": [4]}}},
        "cluster": {"gpu": "H100-SXM-80GB"},
    })  # fmt: skip
    bound = lower_bound(job)

    assert bound.least_bytes == bound.outside_bytes > 0
    assert not bound.exceeds


def test_a_calibration_and_what_others_hold_are_taken_into_account() -> None:
    job = load_document({**JOB, "cluster": {**JOB["cluster"], "held_by_others_bytes": "10GiB"}})

    assert lower_bound(job, outside_bytes=7).outside_bytes == 7
    assert lower_bound(job).capacity_bytes == job.cluster.gpu.total_bytes - 10 * GIB


def test_sizes_beyond_all_gpus_stay_a_number_and_without_a_gpu_nothing_exceeds() -> None:
    many = dict.fromkeys(("layers", "hidden", "ffn", "vocab"), 2**40)
    large = load_document({**JOB, "model": {"decoder": {**many, "heads": 1, "kv_heads": 1}}})
    nowhere = load_document({**JOB, "cluster": {"gpus_per_node": 8, "gpu": None}})

    assert lower_bound(large).least_bytes == MOST_BYTES
    assert not lower_bound(nowhere).exceeds

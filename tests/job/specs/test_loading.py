"""What a job spec may say, and what it then means."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.job.loading import bundle_text, load_bundle, load_document, load_job
from planner.job.printing import job_yaml
from planner.job.schema import (
    Cluster,
    Decoder,
    DpReplicate,
    Eval,
    Gpu,
    Input,
    Job,
    Loss,
    Metadata,
    Model,
    Optimizer,
    Recompute,
    Train,
)

Load = Callable[..., Job]


def test_the_smallest_spec_gets_every_default(load: Load) -> None:
    expected = Job(
        model=Model(decoder=Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=1000)),
        train=Train(sequence_length=128),
        cluster=Cluster(gpu=Gpu(name="H100-SXM-80GB", total_bytes=int(79.10 * 2**30), arch="sm_90")),
    )

    assert load() == expected


def test_the_spec_of_the_documentation_loads(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 4096}')
    (tmp_path / "job.yaml").write_text("""
metadata: {name: llama-8b-sft, team: nlp, queue: h100}     # not part of the plan's identity
model:
  hf_config: ./config.json
  head: causal_lm
  blocks: "model.layers.*"
  parameter_dtype: float32
train:
  micro_batch_size: 1
  sequence_length: 8192
  gradient_accumulation_steps: 8
  precision: bf16_autocast
  loss: cross_entropy
  optimizer: {name: AdamW, foreach: true}
  recompute: none
  gradient_clipping: 1.0
  checkpoint_load: {map_location: cpu, optimizer: false}
  eval: {micro_batch_size: 8, every: 100}
parallel:
  dp_replicate: {degree: 8, bucket_cap_mb: 25, gradient_as_bucket_view: false}
  dp_shard: {degree: 1, reshard_after_forward: true}
  tp: 1
  pp: {degree: 1, schedule: 1F1B, split: [8, 8, 8, 8]}
  cp: 1
  ep: 1
cluster:
  nodes: 1
  gpus_per_node: 8
  gpu: H100-SXM-80GB
software: {torch: "2.13", cuda: "13.0"}
allocator:
  conf: "expandable_segments:True"
""")

    job = load_job(tmp_path / "job.yaml")

    assert job.metadata == Metadata(name="llama-8b-sft", team="nlp", queue="h100")
    assert job.model == Model(
        hf_config={"model_type": "llama", "hidden_size": 4096}, head="causal_lm", blocks="model.layers.*"
    )
    assert job.train.optimizer == Optimizer(name="AdamW", arguments={"foreach": True})
    assert job.train.eval == Eval(micro_batch_size=8, every=100)
    assert job.parallel.dp_replicate == DpReplicate(degree=8)
    assert job.parallel.pp.split == (8, 8, 8, 8)
    assert job.allocator.conf == "expandable_segments:True"


H200 = Gpu(name="H200-SXM-141GB", total_bytes=143156 * 2**20, arch="sm_90")


@pytest.mark.parametrize(
    ("path", "written", "meant"),
    [
        ("train.recompute", "none", Recompute()),
        ("train.recompute", "full", Recompute(mode="full")),
        ("train.recompute", "selective", Recompute(mode="selective")),
        ("train.recompute", "{every: 2}", Recompute(mode="every", every=2)),
        ("train.recompute", "{mode: every, every: 3}", Recompute(mode="every", every=3)),
        ("train.recompute", "{mode: full}", Recompute(mode="full")),
        ("train.optimizer", "SGD", Optimizer(name="SGD")),
        ("train.optimizer", "{name: SGD, momentum: 0.9}", Optimizer(name="SGD", arguments={"momentum": 0.9})),
        ("train.optimizer", "{lr: 1e-4}", Optimizer(arguments={"lr": 1e-4})),
        ("train.optimizer", "{betas: [0.9, 0.95], fused: true}",
         Optimizer(arguments={"betas": [0.9, 0.95], "fused": True})),
        ("train.loss", "mse", Loss(name="mse")),
        ("train.loss", "{chunks: 8, dtype: bfloat16}", Loss(chunks=8, dtype="bfloat16")),
        ("cluster.gpu", "h200-sxm-141gb", H200),
        ("cluster.gpu", "{name: H200-SXM-141GB}", H200),
        ("cluster.gpu", "{name: H200-SXM-141GB, total_bytes: 70GiB}", replace(H200, total_bytes=70 * 2**30)),
        ("cluster.gpu", "{total_bytes: 80GB, arch: sm_90}", Gpu(total_bytes=80 * 10**9, arch="sm_90")),
        ("cluster.gpu", "{total_bytes: 79.1GiB, arch: sm_90}", Gpu(total_bytes=791 * 2**30 // 10, arch="sm_90")),
        ("cluster.gpu", "{name: ours, total_bytes: 1024MiB, arch: gfx90a}",
         Gpu(name="ours", total_bytes=2**30, arch="gfx90a")),
        ("cluster.gpu", "null", Gpu()),
        ("cluster.held_by_others_bytes", "1.5 GB", 1_500_000_000),
        # A version without quotes, and a name that looks like a number, are the text.
        ("software.torch", "2.10", "2.10"),
        ("software.torch", '"2.10"', "2.10"),
        ("software.torch", "2.13.0", "2.13.0"),
        ("metadata.name", "2024", "2024"),
        ("metadata.team", "no", "no"),
        ("metadata.queue", "1e5", "1e5"),
    ],
)  # fmt: skip
def test_a_value_has_short_forms_and_a_type(load: Load, path: str, written: str, meant: object) -> None:
    section, _, key = path.partition(".")
    sections = {
        "train": f"train: {{sequence_length: 1, {key}: {written}}}\n",
        "cluster": f"cluster: {{{'' if key == 'gpu' else 'gpu: T4-16GB, '}{key}: {written}}}\n",
        "more": f"{section}: {{{key}: {written}}}\n",
    }
    where = section if section in sections else "more"

    assert attrgetter(path)(load(**{where: sections[where]})) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-4", 1e-4),
        ("1e5", 1e5),
        ("-2.5E+3", -2500.0),
        (".5", 0.5),
        ("7", 7),
        ("-7", -7),
        ("16_384", 16384),
        ("0x10", 16),
        ("0o10", 8),
        ("010", "010"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("'7'", "7"),
        ("!!str 7", "7"),
        ("!!float 7", 7.0),
        ("{a: [1, x]}", {"a": [1, "x"]}),
        ("{8: x}", {"8": "x"}),
    ],
)
def test_free_values_follow_yaml_1_2(load: Load, written: str, meant: object) -> None:
    model = f'model:\n  factory: "m:build"\n  factory_arguments: {{value: {written}}}\n'

    value = load(model=model).model.factory_arguments["value"]

    assert value == meant
    assert type(value) is type(meant)


def test_anchors_and_merges_are_written_out(load: Load) -> None:
    train = """
train:
  inputs:
    left: &image {shape: [3, 224, 224], dtype: bfloat16}
    right: *image
    mask: {<<: *image, dtype: bool}
"""
    image = Input(shape=(3, 224, 224), dtype="bfloat16")

    assert load(model='model: {factory: "m:build"}\n', train=train).train.inputs == {
        "left": image,
        "mask": Input(shape=(3, 224, 224), dtype="bool"),
        "right": image,
    }


def test_the_first_of_several_merged_mappings_wins(load: Load) -> None:
    model = """
model:
  factory: "m:build"
  factory_arguments:
    first: &first {a: 1}
    second: &second {a: 2, b: 2}
    both: {<<: [*first, *second], c: 3}
"""

    assert load(model=model).model.factory_arguments["both"] == {"a": 1, "b": 2, "c": 3}


def test_inputs_come_in_the_order_of_their_names(load: Load) -> None:
    """So that a bundle, whose keys something may have sorted, gives the same trace."""
    train = "train: {inputs: {b: {shape: [1]}, a: {shape: []}}}\n"

    assert list(load(model='model: {factory: "m:build"}\n', train=train).train.inputs) == ["a", "b"]


def test_a_config_may_stand_in_the_spec(load: Load) -> None:
    model = "model: {hf_config: {model_type: bert, hidden_size: 64, id2label: {0: no}}}\n"

    assert load(model=model).model.hf_config == {"model_type": "bert", "hidden_size": 64, "id2label": {"0": "no"}}


def test_numbers_that_json_lacks_are_read_as_transformers_writes_them(load: Load, tmp_path: Path) -> None:
    config = {"model_type": "mamba2", "old": [0.0, math.inf], "new": [0.0, {"__float__": "Infinity"}]}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert load(model="model: {hf_config: config.json}\n").model.hf_config == {
        "model_type": "mamba2",
        "old": [0.0, math.inf],
        "new": [0.0, math.inf],
    }


def test_a_config_may_say_where_its_code_is_on_a_hub_since_published_ones_do(load: Load) -> None:
    """Whether transformers has the model itself is seen where it is built; no code is fetched in any case."""
    model = "model: {hf_config: {model_type: phi3, auto_map: {AutoConfig: configuration_phi3.Phi3Config}}}\n"

    assert load(model=model).model.hf_config is not None


def test_a_factory_is_looked_for_beside_the_spec(load: Load, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()

    assert load(model='model: {factory: "m:build"}\n').model.factory_path == str(tmp_path)
    there = load(model='model: {factory: "m:build", factory_path: models}\n')
    assert there.model.factory_path == str(tmp_path / "models")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", '{"model": {"factory": "m:build"}, "cluster": {"gpu": "T4-16GB"}}'),
        ("job.yaml", '{model: {factory: "m:build"}, cluster: {gpu: T4-16GB}}'),
        ("job.yaml", '\ufeffmodel: {factory: "m:build"}\ncluster: {gpu: T4-16GB}'),
    ],
    ids=["json", "yaml in braces", "a byte order mark"],
)
def test_a_spec_may_be_written_as(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert load_job(tmp_path / name).cluster.gpu.name == "T4-16GB"


def test_a_spec_that_a_service_received_reads_no_file() -> None:
    spec = {"model": {"hf_config": "/etc/passwd"}, "cluster": {"gpu": "T4-16GB"}}

    with pytest.raises(SpecError, match="this spec may not refer to files"):
        load_document(spec)


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SpecError, match=r"the spec: model\.factory is a bytes"):
        load_document({"model": {"factory": b"m:build"}})


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, '{"a":' * 5000, "a: " + "- " * 5000])
def test_a_spec_nested_without_end_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)

    with pytest.raises(SpecError, match=r"nested too deeply|no YAML"):
        load_job(tmp_path / "job.yaml")


@pytest.mark.parametrize("depth", [90, 110, 300, 900])
def test_what_can_be_read_at_all_can_be_written_again(depth: int) -> None:
    """The limit of the depth is ours, since Python's own lies elsewhere for each reader and writer."""
    deep: object = 1
    for _ in range(depth):
        deep = {"deeper": deep}
    spec = {"model": {"factory": "m:build", "factory_arguments": deep}, "cluster": {"gpu": "T4-16GB"}}

    if depth > 100:
        with pytest.raises(SpecError, match="nested too deeply"):
            load_document(spec)
    else:
        job = load_document(spec)
        assert load_bundle(json.loads(bundle_text(job))) == job
        assert "deeper" in job_yaml(job)


@pytest.mark.parametrize("written", ["1e999", str(10**400), "-1"])
def test_a_number_beyond_all_bounds_is_refused(load: Load, written: str) -> None:
    with pytest.raises(SpecError, match="gradient_clipping is"):
        load(train=f"train: {{sequence_length: 1, gradient_clipping: {written}}}\n")


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(SpecError, match="/dev/zero is larger than 16 MiB"):
        load_job(Path("/dev/zero"))


def test_a_dtype_that_is_not_said_is_filled_in_by_where_the_model_comes_from() -> None:
    """So that a bundle says which was taken, and the same job has one identity."""
    cluster = {"cluster": {"gpu": "H100-SXM-80GB"}}
    factory = load_document({"model": {"factory": "shop:build"}, **cluster})
    said = load_document({"model": {"factory": "shop:build", "parameter_dtype": "as_built"}, **cluster})
    config = load_document({"model": {"hf_config": {"model_type": "llama"}}, **cluster})

    assert (factory.model.parameter_dtype, config.model.parameter_dtype) == ("as_built", "float32")
    assert factory == said

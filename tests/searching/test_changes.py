"""A change of a search is a dotted key and its value, also of what a section passes on to torch."""

from __future__ import annotations

from planner.job.loading import load_document
from planner.job.schema import Compile, DpReplicate, Job, Optimizer
from planner.searching.axes import apply, value_at


def replicated() -> Job:
    decoder = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 100}
    return load_document(
        {
            "model": {"decoder": decoder},
            "train": {"sequence_length": 16, "compile": True},
            "parallel": {"dp_replicate": 2},
            "cluster": {"gpus_per_node": 2, "gpu": "H100-SXM-80GB"},
        }
    )


def test_what_is_no_field_is_an_argument() -> None:
    change = {
        "train.optimizer.fused": True,
        "train.compile.mode": "reduce-overhead",
        "train.compile.fullgraph": True,
        "parallel.dp_replicate.static_graph": True,
        "parallel.dp_replicate.bucket_cap_mb": 10.0,
    }

    changed = apply(replicated(), change)

    assert changed.train.optimizer == Optimizer(arguments={"fused": True})
    assert changed.train.compile == Compile(scope=("model",), mode="reduce-overhead", arguments={"fullgraph": True})
    assert changed.parallel.dp_replicate == DpReplicate(degree=2, bucket_cap_mb=10.0, arguments={"static_graph": True})
    assert {path: value_at(changed, path) for path in change} == change


def test_an_argument_without_a_value_is_taken_away() -> None:
    fused = apply(replicated(), {"train.optimizer.fused": True})

    assert apply(fused, {"train.optimizer.fused": None}) == replicated()

"""Plans and traces are named by what decides them: jobs share a trace where nothing of it differs, and never a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.hardware import catalog
from planner.job.schema import Allocator, Cluster, Decoder, Gpu, Job, Metadata, Model, Train
from planner.planning import identity
from planner.planning.plan import plan_job
from planner.planning.trace_source import TraceCache
from planner.service.orders import build_order
from planner.truth.calibration.interval import Calibration
from planner.units import GIB

NONE = Calibration.none()
JOB = Job(
    model=Model(decoder=Decoder(layers=1, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=64)),
    train=Train(micro_batch_size=1, sequence_length=16),
    cluster=Cluster(gpu=Gpu(name="A100-SXM-80GB", total_bytes=80 * GIB, arch="sm_80")),
)


def on(**cluster: Any) -> Job:
    return replace(JOB, cluster=replace(JOB.cluster, **cluster))


UNTRACED = {
    "allocator": replace(JOB, allocator=Allocator(conf="expandable_segments:True")),
    "host's memory": on(host_memory=64 * GIB),
    "share": on(gpu_fraction=0.5),
    "others": on(held_by_others_bytes=GIB),
    "GPU": on(gpu=Gpu(name="A100-SXM-40GB", total_bytes=40 * GIB, arch="sm_80")),
}


def ids(job: Job = JOB) -> dict[str, str]:
    return {
        "trace": identity.trace_id_of(job),
        "plan": build_order(job, NONE, b"key").plan_id,
        "search": identity.search_scope(NONE),
    }


def differing(after: Mapping[str, str], before: Mapping[str, str]) -> set[str]:
    return {name for name, value in after.items() if value != before[name]}


@pytest.mark.parametrize("job", UNTRACED.values(), ids=UNTRACED)
def test_what_no_trace_depends_on_is_another_plan_of_the_same_trace(job: Job, tmp_path: Path) -> None:
    cache = TraceCache(tmp_path)

    assert differing(ids(job), ids()) == {"plan"}
    assert cache._path(job, 0) == cache._path(JOB, 0)


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, train=replace(JOB.train, sequence_length=32)),
        on(gpu=Gpu(name="H100-SXM-80GB", total_bytes=80 * GIB, arch="sm_90")),
        on(gpu=Gpu(name="A100-SXM-80GB:1g.10gb", total_bytes=10 * GIB, arch="sm_80")),
    ],
    ids=["step", "architecture", "slice"],
)
def test_what_a_trace_depends_on_is_another_trace_and_another_plan(job: Job) -> None:
    assert differing(ids(job), ids()) == {"trace", "plan"}


def test_names_of_a_job_are_no_part_of_its_ids() -> None:
    assert ids(replace(JOB, metadata=Metadata(name="a", team="b", queue="c"))) == ids()


def test_another_number_of_answers_is_another_trace_plan_and_search(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids()
    monkeypatch.setattr(identity, "ANSWERS", identity.ANSWERS + 1)

    assert differing(ids(), before) == {"trace", "plan", "search"}


def test_another_catalog_is_another_plan_of_the_same_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids()
    monkeypatch.setattr(catalog, "digest", lambda: "other")

    assert differing(ids(), before) == {"plan", "search"}


def test_a_plan_says_the_number_of_answers_and_the_ids_by_which_it_was_ordered() -> None:
    made, order = plan_job(JOB, NONE).plan, build_order(JOB, NONE, b"key")

    assert (made.plan_id, made.trace_id) == (order.plan_id, order.trace_id)
    assert made.provenance.allocator_rules == str(identity.ANSWERS)

"""A job on a part of a GPU, and on memory that device and host share, is judged by what it may use of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.allocator.host.statement import HostPeak
from planner.errors import SpecError
from planner.events import Phase
from planner.hardware import catalog
from planner.host_events import HostCategory
from planner.job.loading import job_on_gpu, load_yaml
from planner.job.overhead import outside_of
from planner.job.schema import Job
from planner.planning.memory_pool import state_pool
from planner.planning.plan import plan_job
from planner.report.statement import Plan, from_json, to_json
from planner.report.verdict_text import job_sentence, verdict_sentences
from planner.searching.axes import parse
from planner.searching.exact_plans import PlansHere
from planner.searching.plan_advice import add_advice
from planner.searching.space import Space
from planner.searching.sweeping import sweep
from planner.truth.calibration.interval import Calibration
from planner.units import GIB
from planner.verdict import Verdict

SMALL = """\
metadata: {name: small}
model: {decoder: {layers: 4, hidden: 256, heads: 4, kv_heads: 4, ffn: 1024, vocab: 8192}}
train: {micro_batch_size: 16, sequence_length: 512}
cluster: {nodes: 1, gpus_per_node: 1, gpu: H100-SXM-80GB}
"""


@pytest.fixture(scope="module")
def job() -> Job:
    return load_yaml(SMALL, "small")


@pytest.fixture(scope="module")
def plan(job: Job) -> Plan:
    return plan_job(job, Calibration.none()).plan


def test_a_fraction_of_a_half_halves_the_capacity_and_changes_nothing_else(job: Job, plan: Plan) -> None:
    half = plan_job(replace(job, cluster=replace(job.cluster, gpu_fraction=0.5)), Calibration.none()).plan

    assert half.rank_classes[0].capacity_bytes == plan.rank_classes[0].capacity_bytes // 2
    assert half.rank_classes[0].peak == plan.rank_classes[0].peak


def test_a_job_exceeds_a_share_that_has_no_room_for_its_tensors(job: Job) -> None:
    share = plan_job(replace(job, cluster=replace(job.cluster, gpu_memory=2 * GIB)), Calibration.none()).plan

    assert (share.verdict, share.rank_classes[0].capacity_bytes) == (Verdict.EXCEEDS, 2 * GIB)


def test_what_others_hold_and_a_share_are_not_taken_off_twice(job: Job) -> None:
    total = job.cluster.gpu.total_bytes
    shared = replace(job.cluster, gpu_fraction=0.5, held_by_others_bytes=total // 2)

    assert shared.capacity_bytes == total // 2
    assert replace(shared, gpu_memory=GIB).capacity_bytes == GIB


def test_a_process_that_limits_itself_has_that_share_and_its_context(job: Job, plan: Plan) -> None:
    limited = replace(job, allocator=replace(job.allocator, conf="per_process_memory_fraction:0.5"))
    (ranks,) = plan_job(limited, Calibration.none()).plan.rank_classes

    outside = plan.rank_classes[0].outside_allocator.total_bytes
    assert ranks.capacity_bytes == job.cluster.gpu.total_bytes // 2 + outside


@pytest.mark.parametrize("fraction", ["0", "1.5", "-0.5"])
def test_a_fraction_is_above_nothing_and_at_most_all(fraction: str) -> None:
    with pytest.raises(SpecError, match="gpu_fraction"):
        load_yaml(SMALL.replace("gpu: H100", f"gpu_fraction: {fraction}, gpu: H100"), "small")


def test_several_ranks_on_slices_are_refused_with_the_reason() -> None:
    text = SMALL.replace("gpus_per_node: 1, gpu: H100-SXM-80GB", "gpus_per_node: 2, gpu: H100-SXM-80GB:1g.10gb")

    with pytest.raises(SpecError, match="NCCL does not join the ranks of slices"):
        load_yaml(text + "parallel: {dp_replicate: {degree: 2}}\n", "small")


def test_a_slice_has_the_context_of_the_whole_gpu_at_most_and_its_own_traces(job: Job, plan: Plan) -> None:
    part = job_on_gpu(job, "H100-SXM-80GB:1g.10gb")
    (ranks,) = plan_job(part, Calibration.none()).plan.rank_classes

    assert part.cluster.gpu.target == "sm_90/16"
    assert ranks.capacity_bytes == 9984 * 2**20
    assert ranks.outside_allocator == plan.rank_classes[0].outside_allocator
    assert outside_of(part).low_bytes < outside_of(job).low_bytes


def test_a_job_that_does_not_fit_its_slice_is_told_the_slice_that_does(job: Job) -> None:
    big = replace(job, train=replace(job.train, micro_batch_size=112))
    small = job_on_gpu(big, "H100-SXM-80GB:1g.10gb")
    result = add_advice(plan_job(small, Calibration.none()), seconds=600.0)

    assert result.plan.verdict is Verdict.EXCEEDS
    assert result.plan.advice[0].change == {"cluster.gpu": "H100-SXM-80GB:1g.20gb"}
    assert result.plan.advice[0].verdict is not Verdict.EXCEEDS


def on_spark(job: Job, host_bytes: int) -> Plan:
    """The plan of a job that keeps so much on the host of a GB10, too, which has one memory for both."""
    plan = plan_job(job_on_gpu(job, "GB10-128GB"), Calibration.none()).plan
    assert plan.host is not None
    point = HostPeak(phase=Phase.LOAD, iteration=0, bytes=host_bytes)
    phases = tuple(replace(point, phase=each.phase, iteration=each.iteration) for each in plan.host.fullest.phases)
    node = replace(plan.host.fullest, peak=point, parts={HostCategory.OTHER: host_bytes}, phases=phases)
    host = replace(plan.host, nodes=(node,))
    return replace(plan, host=host, pool=state_pool("GB10-128GB", plan.rank_classes, host, 1))


@pytest.fixture(scope="module")
def large_on_spark(job: Job) -> Plan:
    return on_spark(job, 112 * GIB)


def test_what_fits_the_device_and_not_the_pool_is_refused_with_both_shares(large_on_spark: Plan) -> None:
    pool = large_on_spark.pool

    assert pool is not None
    assert (large_on_spark.gpu_verdict, large_on_spark.verdict) == (Verdict.FITS, Verdict.EXCEEDS)
    assert pool.taken_bytes == pool.device_bytes + pool.host_bytes + 6 * GIB > pool.capacity_bytes
    for text in (verdict_sentences(large_on_spark)[0], job_sentence(large_on_spark)):
        assert f"{pool.device_bytes / GIB:.2f} GiB on the device" in text
        assert f"{pool.host_bytes / GIB:.2f} GiB on the host" in text
        assert "without an OOM kill" in text


def test_a_statement_on_a_pool_comes_back_from_json(large_on_spark: Plan) -> None:
    document = to_json(large_on_spark)

    assert document["pool"]["headroom_bytes"] < 0
    assert from_json(document) == large_on_spark


def test_a_small_job_fits_the_pool_and_other_gpus_have_none(job: Job, plan: Plan) -> None:
    spark = plan_job(job_on_gpu(job, "GB10-128GB"), Calibration.none()).plan

    assert spark.pool is not None
    assert spark.verdict is Verdict.FITS
    assert plan.pool is None
    assert "pool" not in to_json(plan)


def test_a_host_below_its_floor_is_tight(job: Job) -> None:
    assert on_spark(job, 104 * GIB).pool_verdict is Verdict.TIGHT


def test_a_pool_of_a_gpu_that_is_described_by_figures_is_not_known(plan: Plan) -> None:
    assert plan.host is not None
    assert state_pool("", plan.rank_classes, plan.host, 1) is None


def test_a_sweep_over_gpus_agrees_with_a_plan_on_each(job: Job) -> None:
    plans = PlansHere(calibration=Calibration.none())
    axis = parse("gpu=H100,A100-SXM-40GB,A100-SXM-80GB,H100:1g.10gb,GB10,T4")
    found = sweep(Space(base=job, axes=(axis,)), plans)

    assert plans.count == 4  # sm_75, sm_80, sm_90 and sm_121
    for point in found.points:
        name = point.labels[0]
        alone = plan_job(job_on_gpu(job, name), Calibration.none()).plan
        exact = point.exact
        assert exact is not None
        assert exact.verdict is alone.verdict
        # By its own multiprocessors a slice takes no more than by those of its GPU, and hardly less.
        more = exact.device_bytes - alone.rank_classes[0].peak.device_bytes
        assert more == 0 if ":" not in name else 0 <= more <= 256 * 2**20


def test_all_are_all_gpus_and_slices_by_their_memory() -> None:
    gpus = [catalog.by_name(label) for label in parse("gpu=all").labels]
    sizes = [gpu.total_bytes for gpu in gpus if gpu is not None]

    assert sizes == sorted(sizes)
    assert len(sizes) == len(gpus) > 80


def test_ranks_that_talk_are_not_planned_on_slices() -> None:
    two = load_yaml(
        SMALL.replace("gpus_per_node: 1", "gpus_per_node: 2") + "parallel: {dp_replicate: {degree: 2}}\n",
        "two",
    )
    found = sweep(Space(base=two, axes=(parse("gpu=H100:1g.10gb"),)), PlansHere())

    assert found.points[0].verdict == "refused"

"""Advice for a job that does not fit: each change is proven by a plan, cheapest first, and nothing else is said."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from planner.admission.decision import decide
from planner.admission.policy import Policy
from planner.job.loading import document, load_document
from planner.job.overhead import outside_of
from planner.job.schema import Allocator, Decoder, Gpu, Input, Job, Optimizer, Recompute
from planner.planning import planned_classes
from planner.planning.plan import plan_from_traces, plan_job
from planner.report.plan_text import render
from planner.report.statement import Advice, Verdict, change_text
from planner.report.style import Style
from planner.searching import advice
from planner.searching.advice import Advised, advise, more_gpus
from planner.searching.exact_plans import OutOfTimeError, PlansHere
from planner.searching.plan_advice import add_advice, what_was_tried
from planner.truth.calibration.interval import Calibration
from planner.units import GIB, MIB, show_bytes

JobOf = Callable[..., Job]
Told = Callable[[Job], Any]


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    """Each job is traced once for all tests."""
    real = planned_classes.trace_class

    def trace_class(job: Job, rank_class: Any, *arguments: Any, **named: Any) -> Any:
        if job.parallel.dp_shard.degree > 1 or job.parallel.tp.degree > 1:
            return real(job, rank_class, *arguments, **named)
        return told(job).planned.traces

    monkeypatch.setattr(planned_classes, "trace_class", trace_class)


def on(job: Job, total_bytes: int) -> Job:
    gpu = Gpu(total_bytes=total_bytes, arch="sm_90")
    return replace(job, cluster=replace(job.cluster, gpu=gpu))


@pytest.fixture
def needs(told: Told) -> Callable[[Job], int]:
    """The device bytes of a job that has all the room it wants."""
    return lambda job: int(told(on(job, 80 * GIB)).statement.peak.device_bytes)


Needs = Callable[[Job], int]


def least(job: Job, needs: Needs, told: Told) -> int:
    """The smallest GPU, to 2 MiB, on which the job just fits, after however many cache releases."""
    size = needs(job)
    while told(on(job, size - 2 * MIB)).planned.plan.verdict is not Verdict.EXCEEDS:
        size -= 2 * MIB
    return size


def advice_for(job: Job, told: Told, calibration: Calibration | None = None) -> tuple[Advice, ...]:
    assert told
    return tried(job, calibration=calibration).advice


def tried(job: Job, calibration: Calibration | None = None, **named: Any) -> Advised:
    plans = PlansHere() if calibration is None else PlansHere(calibration=calibration)
    return advise(job, plans, **{"widely": False, "seconds": float("inf"), **named})


def changed(job: Job, change: dict[str, Any]) -> Job:
    """The job of the spec after the change was written into it."""
    spec = document(job)
    for key, value in change.items():
        *sections, last = key.split(".")
        section = spec
        for name in sections:
            section = section[name]
        if value is None:
            del section[last]
        else:
            section[last] = value
    return load_document(spec)


def roomy(job_of: JobOf, **arguments: Any) -> Job:
    """A job with more activations than anything else, and every cheap thing left to do."""
    return job_of(**{"ddp": {}, "micro_batch_size": 32, "iterations": 2, **arguments})


def test_each_change_written_into_the_spec_gives_the_plan_that_was_said(
    job_of: JobOf, told: Told, needs: Needs
) -> None:
    job = roomy(job_of)
    small = on(job, needs(job) - 4 * MIB)

    found = advice_for(small, told)

    assert len(found) >= 3
    for each in found:
        plan = told(changed(small, dict(each.change))).planned.plan
        assert each == Advice(
            change=each.change, device_bytes=plan.rank_classes[0].peak.device_bytes, verdict=plan.verdict
        )
        assert plan.verdict is not Verdict.EXCEEDS


def test_of_all_changes_those_are_said_that_fit_and_no_others(job_of: JobOf, told: Told, needs: Needs) -> None:
    job = roomy(job_of)
    small = on(job, needs(changed(job, {"train.recompute": "selective"})) + 2 * MIB)
    singles: list[dict[str, Any]] = [
        {"parallel.dp_replicate.gradient_as_bucket_view": True},
        {"allocator.conf": "expandable_segments:True"},
        {"train.optimizer.fused": True},
        {"train.loss.chunks": 8},
        {"train.recompute": "selective"},
        {"train.recompute": "full"},
    ]

    found = [each.change for each in advice_for(small, told)]

    fitting = [c for c in singles if told(changed(small, c)).planned.plan.verdict is not Verdict.EXCEEDS]
    assert found[:-1] == fitting
    assert 0 < len(fitting) < len(singles)


def test_the_cheapest_for_the_training_comes_first_and_the_largest_micro_batch_that_fits_last(
    job_of: JobOf, told: Told, needs: Needs
) -> None:
    job = roomy(job_of)

    found = [next(iter(each.change)) for each in advice_for(on(job, needs(job) - 2 * MIB), told)]

    order = [
        "parallel.dp_replicate.gradient_as_bucket_view", "allocator.conf", "train.optimizer.fused",
        "train.loss.chunks", "train.recompute", "train.recompute", "train.micro_batch_size",
    ]  # fmt: skip
    assert found == [key for key in order if key in found]
    assert found[-1] == "train.micro_batch_size"


def test_a_smaller_micro_batch_keeps_the_global_batch(job_of: JobOf, told: Told, needs: Needs) -> None:
    job = roomy(job_of)
    quarter = {"train.micro_batch_size": 8, "train.gradient_accumulation_steps": 4}
    small = on(job, needs(changed(job, quarter)))

    found = advice_for(small, told)[-1].change

    size, steps = found["train.micro_batch_size"], found["train.gradient_accumulation_steps"]
    assert size * steps == 32
    larger = {"train.micro_batch_size": 2 * size, "train.gradient_accumulation_steps": steps // 2}
    assert told(changed(small, larger)).planned.plan.verdict is Verdict.EXCEEDS


def test_where_no_change_is_enough_alone_a_row_of_them_is_said(job_of: JobOf, told: Told, needs: Needs) -> None:
    job = roomy(job_of, micro_batch_size=33)  # an odd micro-batch cannot be halved
    together = {
        "parallel.dp_replicate.gradient_as_bucket_view": True, "allocator.conf": "expandable_segments:True",
        "train.optimizer.fused": True, "train.loss.chunks": 8, "train.recompute": "full",
    }  # fmt: skip
    small = on(job, least(changed(job, together), needs, told))

    (only,) = advice_for(small, told)

    assert len(only.change) > 1
    assert only.verdict is not Verdict.EXCEEDS
    assert told(changed(small, dict(only.change))).planned.plan.verdict is only.verdict


@dataclass(slots=True)
class FewPlans(PlansHere):
    """The time is over after so many plans."""

    most: int = 0

    @property
    def is_over(self) -> bool:
        return self.count >= self.most


ALL_OF_THEM: dict[str, Any] = {
    "allocator.conf": "expandable_segments:True", "train.optimizer.fused": True, "train.loss.chunks": 8,
    "train.recompute": "full", "train.micro_batch_size": 5, "train.gradient_accumulation_steps": 4,
}  # fmt: skip


def crowded(job_of: JobOf) -> Job:
    """A job of one process whose activations want several changes."""
    return roomy(job_of, ddp=None, micro_batch_size=20, sequence_length=512)


def test_of_changes_that_are_enough_only_together_none_could_be_left_away(
    job_of: JobOf, told: Told, needs: Needs
) -> None:
    job = crowded(job_of)
    small = on(job, needs(changed(job, ALL_OF_THEM)))

    (only,) = advise(small, FewPlans(most=16), widely=False).advice

    change = dict(only.change)
    assert told(changed(small, change)).planned.plan.verdict is only.verdict is not Verdict.EXCEEDS
    parts = [{key} for key in change if "batch" not in key and "accumulation" not in key]
    for part in [*parts, {"train.micro_batch_size", "train.gradient_accumulation_steps"}]:
        without = {key: value for key, value in change.items() if key not in part}
        assert len(without) < len(change)
        assert told(changed(small, without)).planned.plan.verdict is Verdict.EXCEEDS


def test_where_the_time_ends_before_a_shorter_row_is_found_the_shortest_proven_is_said_and_that_it_is_not_all(
    job_of: JobOf, told: Told, needs: Needs
) -> None:
    job = crowded(job_of)
    small = on(job, least(changed(job, ALL_OF_THEM), needs, told))

    found = advise(small, FewPlans(most=8), widely=False)

    assert [dict(each.change) for each in found.advice] == [ALL_OF_THEM]
    assert found.not_planned[-1] == "fewer of these changes together"


def test_a_larger_gpu_that_is_not_enough_alone_is_said_with_what_is(
    job_of: JobOf, told: Told, needs: Needs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = crowded(job_of)
    larger = {"larger": needs(changed(job, ALL_OF_THEM)), "largest": needs(changed(job, {"train.recompute": "full"}))}
    monkeypatch.setattr(
        advice, "larger_gpus", lambda job: [({"cluster.gpu": name}, on(job, size)) for name, size in larger.items()]
    )
    for other in ("more_gpus", "adapters"):
        monkeypatch.setattr(advice, other, lambda *_: [])

    first, *_ = advise(barely(job, told), PlansHere()).advice

    assert first.change["cluster.gpu"] == "larger"
    assert len(first.change) > 1
    assert first.verdict is not Verdict.EXCEEDS


def barely(job: Job, told: Told) -> Job:
    """On a GPU that holds what stands between two steps, and not a byte beside it."""
    return on(job, sum(told(job).after("optimizer_step", 2).values()) + outside_of(job).total_bytes)


def test_where_nothing_helps_nothing_is_said(job_of: JobOf, told: Told) -> None:
    assert advice_for(barely(roomy(job_of, micro_batch_size=2), told), told) == ()


def test_where_parameters_and_state_alone_are_too_much_nothing_is_planned(job_of: JobOf) -> None:
    found = tried(on(roomy(job_of), 64 * MIB))

    assert (found.advice, found.planned, found.closest) == ((), 0, None)
    assert found.by_bound > 0


def test_a_job_that_does_it_all_already_is_not_told_to(job_of: JobOf, told: Told) -> None:
    job = roomy(
        job_of,
        ddp={"gradient_as_bucket_view": True},
        optimizer=Optimizer(name="AdamW", arguments={"fused": True}),
        recompute=Recompute(mode="full"),
        micro_batch_size=1,
        sequence_length=4,
    )
    job = replace(job, allocator=Allocator(conf="expandable_segments:True"))

    found = tried(barely(job, told))

    assert (found.advice, found.tried) == ((), [])


def test_a_single_process_is_not_told_of_buckets(job_of: JobOf, told: Told, needs: Needs) -> None:
    job = roomy(job_of, ddp=None)

    found = [each.change for each in advice_for(on(job, needs(job) - 4 * MIB), told)]

    assert found
    assert not any("parallel.dp_replicate.gradient_as_bucket_view" in change for change in found)


def test_what_a_job_sets_for_the_allocator_stays(job_of: JobOf, told: Told, needs: Needs) -> None:
    job = replace(roomy(job_of), allocator=Allocator(conf="max_split_size_mb:64"))

    found = [each.change for each in advice_for(on(job, needs(job) - 2 * MIB), told)]

    assert {"allocator.conf": "max_split_size_mb:64,expandable_segments:True"} in found


def test_fused_takes_the_place_of_foreach(job_of: JobOf, told: Told) -> None:
    """A model whose peak is the step: little but parameters."""
    wide = Decoder(layers=4, hidden=512, heads=4, kv_heads=4, ffn=1024, vocab=512)
    foreach = Optimizer(name="AdamW", arguments={"foreach": True})
    job = job_of(model={"decoder": wide}, micro_batch_size=1, sequence_length=4, iterations=2, optimizer=foreach)
    small = on(job, told(job).statement.peak.device_bytes - 30 * MIB)

    changes = [each.change for each in advice_for(small, told)]

    assert {"train.optimizer.fused": True, "train.optimizer.foreach": None} in changes


def test_a_change_that_the_model_cannot_run_with_is_no_advice_and_no_error(
    job_of: JobOf, told: Told, needs: Needs
) -> None:
    """A perceptron has no blocks to recompute."""
    job = job_of("mlp", model={"factory_arguments": {"layers": 8}}, micro_batch_size=16384, iterations=2)

    found = [next(iter(each.change)) for each in advice_for(on(job, needs(job) - 30 * MIB), told)]

    assert "train.micro_batch_size" in found
    assert "train.recompute" not in found


def test_that_change_does_not_spoil_the_row_of_changes_either(job_of: JobOf, told: Told, needs: Needs) -> None:
    rows = {"x": Input(shape=(2048, 128)), "labels": Input(shape=(2048,), dtype="int64", maximum=128)}
    layers = {"factory_arguments": {"layers": 8}}
    job = job_of("mlp", model=layers, inputs=rows, micro_batch_size=6, ddp={}, iterations=2)
    together = {
        "parallel.dp_replicate.gradient_as_bucket_view": True, "allocator.conf": "expandable_segments:True",
        "train.optimizer.fused": True, "train.micro_batch_size": 3, "train.gradient_accumulation_steps": 2,
    }  # fmt: skip
    small = on(job, least(changed(job, together), needs, told))

    enough = {key: together[key] for key in together if key.startswith(("allocator.", "train.micro", "train.gradient"))}
    assert [each.change for each in advice_for(small, told)] == [enough]


def test_advice_is_judged_by_the_calibration_of_the_plan(job_of: JobOf, told: Told, needs: Needs) -> None:
    job = roomy(job_of, ddp=None)
    small = on(job, needs(job) - 4 * MIB)
    held = outside_of(small)
    correction = held.total_bytes - held.high_bytes
    known = Calibration(id="measured", reserved_error=0.0, outside_correction_bytes=correction)

    uncalibrated, calibrated = advice_for(small, told), advice_for(small, told, known)

    full = {"train.recompute": "full"}
    assert [each.verdict for each in uncalibrated if each.change == full] == [Verdict.TIGHT]
    assert [each.verdict for each in calibrated if each.change == full] == [Verdict.FITS]
    plan = plan_from_traces(changed(small, full), told(changed(small, full)).planned.traces, known).plan
    assert plan.verdict is Verdict.FITS


def test_an_answer_has_advice_only_if_the_job_exceeds(job_of: JobOf, needs: Needs, told: Told) -> None:
    job = roomy(job_of)
    small = on(job, needs(job) - 4 * MIB)

    assert add_advice(plan_job(job), seconds=600.0).plan.advice == ()
    assert plan_job(small).plan.advice == ()
    assert add_advice(plan_job(small), seconds=600.0).plan.advice == advice_for(small, told)


def test_an_answer_ends_with_a_whole_spec_that_fits(job_of: JobOf, needs: Needs, told: Told) -> None:
    job = roomy(job_of)
    small = on(job, needs(job) - 4 * MIB)

    plan = add_advice(plan_job(small), seconds=600.0).plan

    written = load_document(yaml.safe_load(plan.fitting_spec))
    assert written == changed(small, dict(plan.advice[0].change))
    assert told(written).planned.plan.verdict is plan.advice[0].verdict
    shown = render(plan, Style()).partition(", as a spec:\n")[2]
    assert textwrap.dedent(shown.partition("\n\n")[0]) + "\n" == plan.fitting_spec
    assert add_advice(plan_job(job), seconds=600.0).plan.fitting_spec == ""


def test_what_is_tried_is_told_while_it_goes_on(job_of: JobOf, needs: Needs) -> None:
    said: list[str] = []
    job = roomy(job_of)

    tried(on(job, needs(job) - 4 * MIB), progress=said.append)

    assert "trying parallel.dp_replicate.gradient_as_bucket_view: true" in said
    assert "trying train.recompute: full" in said


def test_of_what_all_changes_at_once_cannot_mend_no_others_together_are_tried(job_of: JobOf, told: Told) -> None:
    job = barely(roomy(job_of, micro_batch_size=2), told)

    found = tried(job)

    *singles, together = found.tried
    assert (found.advice, found.not_planned) == ((), [])
    assert singles == [change_text(change) for change, _ in advice.single(job)]
    assert together.count(": ") > len(singles) - 1
    assert found.closest is not None
    assert change_text(found.closest[0]) == together


def test_what_came_closest_is_said_with_the_bytes_that_it_lacks(job_of: JobOf, told: Told) -> None:
    job = barely(roomy(job_of, micro_batch_size=2, ddp=None), told)

    found = tried(job)

    assert found.closest is not None
    change, exact = found.closest
    closest = told(changed(job, dict(change))).planned.plan
    assert exact.headroom_bytes == closest.rank_classes[0].headroom_bytes < 0
    assert f"Closest came {change_text(change)}, which lacks {show_bytes(-exact.headroom_bytes)}. Planned: " in (
        what_was_tried(found, 1.0)
    )


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024, "vocab_size": 2048,
}  # fmt: skip


def test_larger_gpus_more_of_them_and_adapters_are_said_where_the_state_alone_is_too_much() -> None:
    spec = {
        "model": {"hf_config": {**LLAMA, "hidden_size": 2048, "num_hidden_layers": 12, "intermediate_size": 8192}},
        "train": {"sequence_length": 32, "precision": "bf16_autocast", "iterations": 2},
        "cluster": {"gpu": {"total_bytes": 10 * GIB, "arch": "sm_90"}},
    }
    job = load_document(spec)
    found = add_advice(plan_job(job), seconds=600.0).plan

    assert [list(each.change) for each in found.advice] == [
        ["cluster.gpu"],
        ["cluster.gpus_per_node", "parallel.dp_shard.degree", "train.precision"],
        ["model.adapter", "model.parameter_dtype"],
        ["model.adapter", "model.parameter_dtype"],
    ]
    assert [each.change["model.adapter"]["kind"] for each in found.advice[2:]] == ["lora", "qlora"]
    for each in found.advice:
        plan = plan_job(changed(job, dict(each.change))).plan
        assert (plan.verdict, plan.rank_classes[0].peak.device_bytes) == (each.verdict, each.device_bytes)
        assert plan.verdict is not Verdict.EXCEEDS


def test_of_changes_that_their_bound_excludes_the_strongest_of_each_kind_is_said() -> None:
    large = {**LLAMA, "hidden_size": 16384, "num_hidden_layers": 2048, "intermediate_size": 65536}
    job = on(load_document({"model": {"hf_config": large}, "train": {"sequence_length": 2048},
                            "cluster": {"gpu": "T4"}}), 16 * GIB)  # fmt: skip

    found = advise(job, PlansHere())

    assert (found.planned, found.advice, found.closest) == (0, (), None)
    assert [next(reversed(change)) for change, _ in found.excluded] == [
        "train.recompute", "cluster.gpu", "train.recompute", "train.recompute", "train.recompute",
    ]  # fmt: skip
    said = what_was_tried(found, 1.0)
    assert "Too large at least, by their lower bound: " in said
    assert "; cluster.gpu: B300-SXM-288GB (" in said


@pytest.mark.parametrize(
    ("parallel", "cluster", "train", "change"),
    [
        ({"dp_replicate": 2}, {"gpus_per_node": 2}, {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
         {"cluster.gpus_per_node": 4, "parallel.dp_replicate.degree": 1, "parallel.dp_shard.degree": 4,
          "train.gradient_accumulation_steps": 1}),
        ({"dp_shard": 8}, {"gpus_per_node": 8}, {"micro_batch_size": 4},
         {"cluster.nodes": 2, "parallel.dp_shard.degree": 16, "train.micro_batch_size": 2}),
        ({"dp_shard": 4, "tp": 2}, {"nodes": 2, "gpus_per_node": 4}, {"micro_batch_size": 1},
         {"cluster.nodes": 4, "parallel.dp_shard.degree": 8}),
    ],
)  # fmt: skip
def test_twice_the_gpus_share_the_global_batch_where_it_can_be_divided(
    parallel: dict[str, int], cluster: dict[str, int], train: dict[str, int], change: dict[str, Any]
) -> None:
    spec = {
        "model": {"hf_config": LLAMA},
        "train": {"sequence_length": 32, **train},
        "parallel": parallel,
        "cluster": {"gpu": "H100-SXM-80GB", **cluster},
    }

    found, _ = next(more_gpus(load_document(spec)))

    assert found == change


def test_singles_are_planned_before_all_of_them_at_once_and_what_was_left_is_said(job_of: JobOf, needs: Needs) -> None:
    job = crowded(job_of)
    small = on(job, needs(changed(job, {"train.recompute": "selective"})))

    found = advise(small, FewPlans(most=5))

    singles = ["allocator.conf: expandable_segments:True", "train.optimizer.fused: true", "train.loss.chunks: 8",
               "train.recompute: selective", "train.recompute: full"]  # fmt: skip
    assert [dict(each.change) for each in found.advice][:1] == [{"train.recompute": "selective"}]
    assert found.tried == singles
    assert found.not_planned == [change_text(change) for change, _ in advice.smaller_micro_batches(small)]


def test_a_search_that_was_cut_says_neither_nothing_nor_what_it_did_not_plan(job_of: JobOf, told: Told) -> None:
    job = barely(roomy(job_of, micro_batch_size=2, ddp=None), told)

    found = advise(replace(job, cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, name="A100-SXM-40GB"))),
                   FewPlans(most=1))  # fmt: skip

    said = what_was_tried(found, 20.0)
    assert (found.tried, found.planned) == (["allocator.conf: expandable_segments:True"], 1)
    planned, left = said.split("Planned: ")[1], said.split("not planned are: ")[1].split(". ")[0]
    assert "Nothing" not in said
    assert "None of those planned makes it fit." in said
    assert planned.startswith("allocator.conf: expandable_segments:True.")
    assert left.startswith("train.optimizer.fused: true; train.loss.chunks: 8; train.recompute: selective")
    assert "several of these changes together" in found.not_planned


def test_with_no_time_at_all_nothing_is_said_to_be_planned(job_of: JobOf, needs: Needs) -> None:
    job = crowded(job_of)

    said = what_was_tried(advise(on(job, needs(job) - 2 * MIB), FewPlans(most=0), widely=False), 447.0)

    assert said == (
        "Advice: 0 changes were planned in 447 s. The time was over, and not planned are: allocator.conf:"
        " expandable_segments:True; train.optimizer.fused: true; train.loss.chunks: 8; train.recompute: selective;"
        " train.recompute: full; train.micro_batch_size: 10, train.gradient_accumulation_steps: 2;"
        " train.micro_batch_size: 5, train.gradient_accumulation_steps: 4; several of these changes together."
    )


def test_only_of_a_whole_search_a_change_is_called_the_smallest(job_of: JobOf, needs: Needs) -> None:
    job = roomy(job_of)
    plan = add_advice(plan_job(on(job, needs(job) - 4 * MIB)), seconds=600.0).plan
    assert plan.advice_tried is not None
    cut = replace(plan, advice_tried=replace(plan.advice_tried, not_planned=("train.recompute: full",)))

    assert "Smallest change: " in render(plan, Style())
    assert "Smallest change: " not in render(cut, Style())
    assert "A change that fits, perhaps not the smallest: " in render(cut, Style())
    ways_out = [decide(each, Policy()).way_out.partition(": ")[2] for each in (plan, cut)]
    assert [way.partition(":")[0] for way in ways_out] == [
        "the smallest change that fits", "a change that fits, perhaps not the smallest",
    ]  # fmt: skip


def test_a_trial_ends_at_its_time(job_of: JobOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def trace_forever(*_: Any, **__: Any) -> Any:
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # as code of a job may
                continue

    monkeypatch.setattr(planned_classes, "trace_class", trace_forever)
    job = on(roomy(job_of), 300 * MIB)

    future = PlansHere(deadline=time.monotonic() + 0.05).submit([job])

    assert isinstance(future.exception(), OutOfTimeError)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_job_that_fits_only_by_freeing_its_cache_is_advised_what_avoids_that(job_of: JobOf, needs: Needs) -> None:
    """Its optimizer step has temporaries of the size of its parameters, which a fused one has not."""
    wide = Decoder(layers=4, hidden=512, heads=4, kv_heads=4, ffn=1024, vocab=512)
    job = job_of(model={"decoder": wide}, micro_batch_size=16, sequence_length=64, iterations=2)
    size = needs(job)
    plans = (plan_job(on(job, size - missing * MIB)) for missing in range(2, 200, 2))
    narrow = next(each for each in plans if each.plan.rank_classes[0].cache_releases)
    assert narrow.plan.verdict is Verdict.TIGHT

    advised = add_advice(narrow, seconds=600.0).plan

    (only,) = advised.advice
    assert "train.recompute" not in only.change
    after = plan_job(changed(narrow.job, dict(only.change))).plan
    assert (after.rank_classes[0].cache_releases, after.verdict) == (0, only.verdict)
    assert f"Without freeing the cache: {change_text(only.change)} → " in render(advised, Style(width=120))

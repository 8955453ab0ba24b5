"""`planner run --save-spec`: the spec of a program that was run says what can be said, and plans to the same peak."""

from __future__ import annotations

import shlex

import pytest
from program_runs import Run, forked_ranks, judge, replay_on_h100

from planner.errors import SpecError
from planner.events import Category
from planner.job.launching.line import parse
from planner.job.loading import load_yaml
from planner.job.named_gpus import look_up
from planner.job.schema import DpReplicate, DpShard, Job, Recompute
from planner.planning.job_plan import plan_job
from planner.planning.program import inputs_of, judge_runs
from planner.planning.program_spec import compare_peaks, spec_text
from planner.planning.trace_source import USUAL_SOURCE
from planner.tracing.program.rank_orders import RankRun
from planner.units import show_bytes

FSDP = "torchrun --nproc-per-node 4 {programs}/in_a_world.py fsdp"
NOTHING, SECOND = Recompute(), Recompute(mode="every", every=2)


def saved(ran: RankRun, command: str) -> tuple[str, Job]:
    words = shlex.split(command.format(programs="tests/tracing/running/programs"))
    text = spec_text(ran, inputs_of(parse(words), words, look_up("H100-SXM-80GB")))
    return text, load_yaml(text)


@pytest.mark.parametrize(
    ("command", "precision", "split", "recompute", "differs"),
    [
        ("python {programs}/fine_tune.py", "bf16_autocast", (DpReplicate(), DpShard()), NOTHING, 0.001),
        (
            "torchrun --nproc-per-node 4 {programs}/in_a_world.py ddp",
            "bf16_autocast",
            (DpReplicate(degree=4), DpShard()),
            NOTHING,
            0.001,
        ),
        (FSDP, "fsdp_mixed", (DpReplicate(), DpShard(degree=4)), NOTHING, 0.001),
        # What wraps a block keeps 256 KiB more of its activations than the spec's own recomputation.
        (f"{FSDP} --recompute 0,1", "fsdp_mixed", (DpReplicate(), DpShard(degree=4)), Recompute(mode="full"), 0.006),
        (f"{FSDP} --recompute 1", "fsdp_mixed", (DpReplicate(), DpShard(degree=4)), SECOND, 0.003),
    ],
    ids=["transformers Trainer", "DDP", "FSDP2", "FSDP2 of wrapped blocks", "FSDP2, every second block wrapped"],
)
def test_it_plans_to_the_peak_of_the_run(
    run: Run,
    command: str,
    precision: str,
    split: tuple[DpReplicate, DpShard],
    recompute: Recompute,
    differs: float,
) -> None:
    ran = run(command)

    _, job = saved(ran, command)

    assert (job.train.precision, job.train.micro_batch_size, job.train.loss.name) == (precision, 4, "model")
    assert (job.parallel.dp_replicate, job.parallel.dp_shard, job.train.recompute) == (*split, recompute)
    assert (job.train.optimizer.name, job.train.gradient_clipping) == ("AdamW", 1.0)
    planned, timeline = plan_job(job).plan.rank_classes[0].peak, replay_on_h100(ran.trace)
    assert planned.allocated_bytes == pytest.approx(timeline.peak_allocated_bytes, rel=differs)
    assert planned.reserved_bytes == pytest.approx(timeline.peak_reserved_bytes, abs=2 << 20)


def test_a_spec_that_does_not_say_all_of_its_program_says_so() -> None:
    """The first of two blocks recomputes: no key of a spec says that."""
    words = shlex.split(f"{FSDP} --recompute 0".format(programs="tests/tracing/running/programs"))
    known = look_up("H100-SXM-80GB")
    assert known is not None
    work = inputs_of(parse(words), words, known, ranks="0", patience_seconds=0, writes=True)
    with forked_ranks():
        statement, runs = judge_runs(work)
    text = spec_text(runs[0], work)

    said = compare_peaks(text, statement, USUAL_SOURCE)

    planned, ran = plan_job(load_yaml(text)).plan.rank_classes[0], statement.rank_classes[0]
    assert said.startswith(
        f"The saved spec plans to a peak of {show_bytes(planned.peak.allocated_bytes)} allocated,"
        f" {show_bytes(planned.peak.reserved_bytes)} reserved; that of the program is"
        f" {show_bytes(ran.peak.allocated_bytes)} allocated, {show_bytes(ran.peak.reserved_bytes)} reserved. The spec"
        " does not say all of the program: at the peak"
    )
    activations = (show_bytes(each.at_peak[Category.ACTIVATION]) for each in (planned, ran))
    assert f"activation {' for '.join(activations)}" in said
    unsaid = "# - 1 of 2 blocks recompute (1 wrapped modules), which train.recompute cannot say: it is none"
    assert unsaid in text.splitlines()


def test_a_spec_that_is_to_be_completed_is_not_planned() -> None:
    """A model of the program's own: planning it would run the program."""
    statement = judge("python", "tests/tracing/running/programs/classifier.py", steps=2)
    text = "model: {factory: 'classifier:Model'}\ntrain: {micro_batch_size: 1}\ncluster: {gpu: H100-SXM-80GB}\n"

    said = [compare_peaks(each, statement, USUAL_SOURCE) for each in (text, "model: 3\n")]

    assert said[0] == "The saved spec was not planned: model.factory is to be completed."
    assert said[1].startswith("The saved spec cannot be planned as it is: the spec:1:")


def test_a_model_of_its_own_is_named_to_be_completed(run: Run) -> None:
    command = "python {programs}/classifier.py"

    text, job = saved(run(command), command)

    assert job.model.factory == "classifier:Model"
    assert {name: (each.shape, each.dtype) for name, each in job.train.inputs.items()} == {
        "tokens": ((64,), "int64"), "targets": ((64,), "int64"),
    }  # fmt: skip
    assert (job.train.micro_batch_size, job.train.precision, job.train.optimizer.name) == (8, "fp16_autocast", "AdamW")
    said = [line for line in text.splitlines() if line.startswith("# - ")]
    assert "# - model.factory is the model's class: complete model.factory_arguments, or name a function" in said
    assert "# - evaluations were seen: train.eval describes one" in said


def test_optimizers_that_a_spec_cannot_name_are_said(run: Run) -> None:
    command = "python {programs}/adversaries.py"

    text, _ = saved(run(command), command)

    assert "there are other optimizers" in text


def test_a_program_without_a_module_has_no_spec() -> None:
    words = ["python", "t.py"]
    with pytest.raises(SpecError, match="no module was seen being trained"):
        spec_text(RankRun(rank=0, trace=None, ending="", iterations=1), inputs_of(parse(words), words, look_up("H100")))  # type: ignore[arg-type]

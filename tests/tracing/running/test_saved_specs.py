"""`planner run --save-spec`: the spec of a program that was run says what can be said, and plans to the same peak."""

from __future__ import annotations

import shlex

import pytest
from program_runs import Run, replay_on_h100

from planner.errors import SpecError
from planner.job.launching.line import parse
from planner.job.loading import load_yaml
from planner.job.named_gpus import look_up
from planner.job.schema import DpReplicate, DpShard, Job
from planner.planning.job_plan import plan_job
from planner.planning.program import inputs_of
from planner.planning.program_spec import spec_text
from planner.tracing.program.rank_orders import RankRun


def saved(ran: RankRun, command: str) -> tuple[str, Job]:
    words = shlex.split(command.format(programs="tests/tracing/running/programs"))
    text = spec_text(ran, inputs_of(parse(words), words, look_up("H100-SXM-80GB")))
    return text, load_yaml(text)


@pytest.mark.parametrize(
    ("command", "precision", "split"),
    [
        ("python {programs}/fine_tune.py", "bf16_autocast", (DpReplicate(), DpShard())),
        (
            "torchrun --nproc-per-node 4 {programs}/in_a_world.py ddp",
            "bf16_autocast",
            (DpReplicate(degree=4), DpShard()),
        ),
        ("torchrun --nproc-per-node 4 {programs}/in_a_world.py fsdp", "fsdp_mixed", (DpReplicate(), DpShard(degree=4))),
    ],
    ids=["transformers Trainer", "DDP", "FSDP2"],
)
def test_it_plans_to_the_peak_of_the_run(
    run: Run, command: str, precision: str, split: tuple[DpReplicate, DpShard]
) -> None:
    ran = run(command)

    _, job = saved(ran, command)

    assert (job.train.precision, job.train.micro_batch_size, job.train.loss.name) == (precision, 4, "model")
    assert (job.parallel.dp_replicate, job.parallel.dp_shard) == split
    assert (job.train.optimizer.name, job.train.gradient_clipping) == ("AdamW", 1.0)
    planned, timeline = plan_job(job).plan.rank_classes[0].peak, replay_on_h100(ran.trace)
    assert planned.allocated_bytes == pytest.approx(timeline.peak_allocated_bytes, rel=0.001)
    assert planned.reserved_bytes == pytest.approx(timeline.peak_reserved_bytes, abs=2 << 20)


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

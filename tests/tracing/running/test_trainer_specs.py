"""Specs with `trainer`: the files of transformers, accelerate, DeepSpeed and PEFT as they are, run as a program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_files import ZERO_2
from foreign_files import FSDP_1, FSDP_2, accelerate_config, training_arguments
from program_runs import forked_ranks, judge, run_planner
from trainer_jobs import FLAGS, spec_of, written

from planner import cli
from planner.errors import ProgramError, SpecError
from planner.events import Category
from planner.job.loading import bundle, load_bundle, load_job
from planner.job.schema import Job
from planner.planning.plan import plan_job, plan_program
from planner.planning.trainer_program import program_of
from planner.programs.launching import trainer_command
from planner.report.statement import Plan

SCRIPT = Path(__file__).parent / "programs" / "fine_tune_by_flags.py"
STEPS = 3


def planned(job: Job, folder: Path) -> Plan:
    with forked_ranks():
        return plan_program(program_of(job, folder)).plan


def bytes_of(statement: Plan) -> list[Any]:
    """Of every rank class all phases, with the peaks of each."""
    return [
        (each.ranks, [(phase.phase, phase.iteration, phase.peak_allocated_bytes) for phase in each.phases])
        for each in statement.rank_classes
    ]


def flags(**arguments: Any) -> list[str]:
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize(
    ("gpus", "arguments", "fsdp"),
    [
        (1, {"gradient_checkpointing": True}, {}),
        (2, {"bf16": True, "gradient_accumulation_steps": 2}, {}),
        (2, {"bf16": True, "deepspeed": "zero.json"}, {}),
        (2, {}, FSDP_2),
        (2, {"bf16": True}, FSDP_1),
    ],
    ids=["one", "ddp", "deepspeed", "accelerate-fsdp", "accelerate-fsdp1"],
)
def test_it_takes_the_bytes_of_a_script_with_the_same_arguments(
    tmp_path: Path, gpus: int, arguments: Mapping[str, Any], fsdp: Mapping[str, Any]
) -> None:
    zero = written(tmp_path / "zero.json", ZERO_2)
    config = accelerate_config(
        tmp_path / "accelerate.yaml", num_processes=gpus, distributed_type="FSDP", fsdp_config=dict(fsdp)
    )
    start = ["torchrun", "--nproc-per-node", str(gpus)]
    if fsdp:
        start = ["accelerate", "launch", "--config_file", str(config)]
    of_script = {**FLAGS, **arguments, **({"deepspeed": zero} if "deepspeed" in arguments else {})}
    said = {"accelerate": "accelerate.yaml"} if fsdp else {}
    job = load_job(spec_of(tmp_path, gpus, arguments={**FLAGS, **arguments}, **said))

    found = planned(job, tmp_path)

    line = [*start, str(SCRIPT), "--config", str(tmp_path / "config.json"), *flags(**of_script, output_dir="out")]
    assert bytes_of(found) == bytes_of(judge(*line, node_gpus=gpus, batches=0))
    assert found.rank_classes[0].phases[-1].iteration == STEPS


def test_an_adapter_is_added_by_peft_itself(tmp_path: Path) -> None:
    """Rank 4 beside both layers' queries, 64 x 64, and values, 32 x 64, in float32 as get_peft_model makes them."""
    adapter = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    whole, adapted = (
        planned(load_job(spec_of(tmp_path, 1, arguments=FLAGS, peft=peft)), tmp_path) for peft in ({}, adapter)
    )

    states = [one.rank_classes[0].at_peak[Category.OPTIMIZER_STATE] for one in (adapted, whole)]

    assert states[0] < states[1]
    assert states[0] >= 2 * 2 * 4 * (4 * (64 + 64) + 4 * (64 + 32))


def test_a_bundle_holds_the_content_of_all_files(tmp_path: Path) -> None:
    written(tmp_path / "zero.json", ZERO_2)
    (tmp_path / "args.json").write_text(training_arguments(deepspeed="zero.json"), encoding="utf-8")
    config = accelerate_config(tmp_path / "accelerate.yaml", distributed_type="DEEPSPEED", deepspeed_config={})
    answers = yaml.safe_load(config.read_text(encoding="utf-8"))
    answers["deepspeed_config"] = {"deepspeed_config_file": "zero.json"}
    config.write_text(yaml.safe_dump(answers), encoding="utf-8")

    job = load_job(spec_of(tmp_path, 8, arguments="args.json", accelerate="accelerate.yaml"))

    assert job.trainer is not None
    assert job.trainer.arguments["deepspeed"] == ZERO_2
    assert job.trainer.accelerate["deepspeed_config"] == {"deepspeed_config_file": ZERO_2}
    assert load_bundle(json.loads(json.dumps(bundle(job)))) == job
    words = trainer_command(job, tmp_path)
    assert words[:2] == ["accelerate", "launch"]
    again = yaml.safe_load(Path(words[words.index("--config_file") + 1]).read_text(encoding="utf-8"))
    assert json.loads(Path(again["deepspeed_config"]["deepspeed_config_file"]).read_text()) == ZERO_2


@pytest.mark.parametrize(
    ("trainer", "place", "says"),
    [
        ({"arguments": {"per_device_batch": 2}}, "trainer.arguments", "unexpected keyword argument 'per_device_batch'"),
        ({"arguments": {"eval_strategy": "often"}}, "trainer.arguments", "often is not a valid IntervalStrategy"),
        ({"arguments": FLAGS, "peft": {"rank": 4}}, "trainer.peft", "unexpected keyword argument 'rank'"),
    ],
)
def test_what_a_class_does_not_know_it_says_itself(
    tmp_path: Path, trainer: Mapping[str, Any], place: str, says: str
) -> None:
    with pytest.raises((SpecError, ProgramError), match=says) as refusal:
        planned(load_job(spec_of(tmp_path, 1, **trainer)), tmp_path)

    assert refusal.value.place == place


def test_without_deepspeed_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(spec_of(tmp_path, 2, arguments={**FLAGS, "deepspeed": dict(ZERO_2)}))
    monkeypatch.setitem(sys.modules, "deepspeed", None)

    with pytest.raises(SpecError) as caught:
        plan_job(job)

    assert str(caught.value) == (
        "trainer: a Trainer whose files name DeepSpeed needs what is not installed: deepspeed\n"
        "  change:  pip install 'deepspeed>=0.19.8,<0.20'"
    )


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.micro_batch_size=4", "train.micro_batch_size stands beside trainer, whose files decide it"),
        ("train.optimizer=SGD", "train.optimizer stands beside trainer, whose files decide it"),
        ("parallel.dp_shard.degree=2", "parallel.dp_shard stands beside trainer, whose files decide it"),
        ("model.adapter.r=4", "model.adapter stands beside trainer"),
        ("trainer.arguments=missing.json", "missing.json\n  change:  a relative path starts from the folder"),
        ("trainer.arguments=[1]", "trainer.arguments is a list"),
    ],
)
def test_keys_that_the_files_decide_are_written_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, says: str
) -> None:
    assert cli.main(["spec", str(spec_of(tmp_path, 2, arguments=FLAGS)), "--set", setting]) == 2
    assert says in capsys.readouterr().err


def test_the_command_plans_and_checks_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(spec_of(tmp_path, 1, arguments=FLAGS))

    plan, check = (
        run_planner(capfd, word, path, *more) for word, more in (("plan", ["--format", "json"]), ("check", []))
    )

    assert (plan.returncode, check.returncode) == (0, 0)
    assert json.loads(plan.stdout)["command"][-2:] == ["planner.programs.trainer", "job.json"]
    assert check.stdout.startswith("unnamed job fits: rank 0 needs ")


def test_options_put_files_into_the_spec_as_they_are_without_loading_torch(tmp_path: Path) -> None:
    arguments = written(tmp_path / "args.json", {"bf16": True, "seed": 3})
    zero, adapter = written(tmp_path / "zero.json", ZERO_2), tmp_path / "adapter"
    adapter.mkdir()
    written(adapter / "adapter_config.json", {"peft_type": "LORA", "r": 4})
    config = accelerate_config(tmp_path / "accelerate.yaml")
    words = [
        "spec", "Qwen/Qwen3-0.6B", "--gpus", "8xH100", "--from-training-arguments", str(arguments),
        "--from-deepspeed", str(zero), "--from-accelerate", str(config), "--from-peft", str(adapter), "--bundle",
    ]  # fmt: skip
    program = (
        "import sys; from planner.cli import main\n"
        f"code = main({words!r})\n"
        "loaded = {'torch', 'transformers', 'accelerate', 'ray'} & sys.modules.keys()\n"
        "sys.exit(f'{loaded} after {code}' if loaded or code else 0)"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    job = json.loads(ended.stdout)
    assert job["trainer"] == {
        "arguments": {"bf16": True, "seed": 3, "deepspeed": ZERO_2},
        "accelerate": yaml.safe_load(config.read_text(encoding="utf-8")),
        "peft": {"peft_type": "LORA", "r": 4},
    }
    assert (job["model"]["parameter_dtype"], job["train"]["precision"]) == ("bfloat16", "none")
    assert job["parallel"]["dp_replicate"]["degree"] == 1
    assert "taken: the model in bfloat16, as from_pretrained of transformers 5 loads this config" in ended.stderr


def test_python_plans_it_too(tmp_path: Path) -> None:
    import planner

    path = spec_of(tmp_path, 1, arguments=FLAGS)
    with forked_ranks():
        found = planner.plan(path)

    assert (found.verdict, found.statement.command[-2]) == ("fits", "planner.programs.trainer")

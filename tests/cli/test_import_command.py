"""`planner spec --from-...`: the spec on standard output, what people are told beside it on standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from importing_folder import LLAMA

from planner import cli
from planner.job.loading import load_bundle, load_job

REPOSITORY = Path(__file__).parents[2]
LINE = "PYTORCH_ALLOC_CONF=expandable_segments:True NCCL_DEBUG=INFO torchrun --nproc-per-node 2 train.py --data x"


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """A command line that says everything."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    arguments = {"per_device_train_batch_size": 2, "bf16": True, "seed": 3, "output_dir": "out"}
    (tmp_path / "args.json").write_text(json.dumps(arguments), encoding="utf-8")
    return [
        "spec", "--from-training-arguments", str(tmp_path / "args.json"), "--from-torchrun", LINE,
        "--model", str(tmp_path / "config.json"), "--gpu", "H100-SXM-80GB", "--sequence-length", "128",
    ]  # fmt: skip


def test_the_spec_is_on_stdout_and_the_rest_on_stderr(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(given) == 0

    shown = capsys.readouterr()
    (tmp_path / "job.yaml").write_text(shown.out, encoding="utf-8")
    job = load_job(tmp_path / "job.yaml")
    assert (job.train.micro_batch_size, job.train.precision) == (2, "bf16_autocast")
    assert job.allocator.conf == "expandable_segments:True"
    told = shown.err.replace("\n  ", " ").splitlines()
    assert told == [
        f"{tmp_path}/args.json: without effect on memory: seed, output_dir",
        "the launch line: not read: NCCL_DEBUG, --data",
        "taken: model.parameter_dtype is bfloat16, as from_pretrained of transformers 5 loads this config",
    ]


def test_a_bundle_comes_out_as_well(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*given, "--bundle"]) == 0

    assert load_bundle(json.loads(capsys.readouterr().out)).parallel.dp_replicate.degree == 2


def test_a_job_says_what_the_files_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(
        "metadata: {team: nlp}\nmodel: {hf_config: config.json}\n"
        "train: {sequence_length: 64, micro_batch_size: 1}\ncluster: {gpu: H100-SXM-80GB}\n",
        encoding="utf-8",
    )

    assert cli.main(["spec", str(tmp_path / "job.yaml"), "--from-torchrun", LINE]) == 0
    assert "  team: nlp\n" in capsys.readouterr().out


def test_what_is_refused_ends_with_2(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given[given.index(LINE)] = "torchrun --nproc-per-node gpu train.py"

    assert cli.main(given) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "the launch line: --nproc-per-node is gpu, which the machine decides\n"
        "  allowed: a number\n"
        "  change:  write how many GPUs a node has\n"
    )


def test_options_say_what_the_files_cannot_and_replace_what_they_say(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--batch", "3", "--gpus", "4", "--fsdp", "4", "--set", "train.optimizer.lr=0.1"]

    assert cli.main([*given, *options]) == 0

    (tmp_path / "job.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    job = load_job(tmp_path / "job.yaml")
    assert (job.train.micro_batch_size, job.train.optimizer.arguments["lr"]) == (3, 0.1)
    assert (job.cluster.gpus_per_node, job.parallel.dp_shard.degree, job.parallel.dp_replicate.degree) == (4, 4, 1)


def test_a_model_may_be_named_beside_the_files(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given[given.index("--model") + 1] = "Qwen/Qwen3-0.6B"

    assert cli.main(given) == 0
    assert "  hf_config: Qwen/Qwen3-0.6B\n" in capsys.readouterr().out


def test_a_model_stands_in_the_place_of_the_job_as_everywhere(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = given.index("--model")

    assert cli.main([*given[:place], *given[place + 2 :], "Qwen/Qwen3-0.6B"]) == 0
    assert "  hf_config: Qwen/Qwen3-0.6B\n" in capsys.readouterr().out
    assert cli.main([*given, "Qwen/Qwen3-0.6B"]) == 2
    assert "are both models" in capsys.readouterr().err


def test_neither_torch_nor_transformers_is_loaded(given: list[str]) -> None:
    program = (
        "import sys; from planner.cli import main\n"
        f"code = main({given!r})\n"
        "loaded = {'torch', 'transformers', 'accelerate', 'ray'} & sys.modules.keys()\n"
        "sys.exit(f'{loaded} after {code}' if loaded or code else 0)"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY)

    assert (ended.returncode, ended.stderr.splitlines()[-1][:6]) == (0, "taken:")

"""Whatever names a job leads to it: a config.json, its folder, an adapter, the hub's cache, standard input."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from config_files import LLAMA

from planner import cli
from planner.errors import SpecError
from planner.job import hf_config
from planner.job.loading import load_yaml
from planner.job.named_jobs import GivenJob, read
from planner.job.schema import Adapter, Job
from planner.job.shorthand import Shorthand

ADAPTER: Mapping[str, Any] = {
    "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-0.6B", "r": 4, "lora_alpha": 32, "lora_dropout": 0.05,
    "target_modules": ["v_proj", "q_proj"], "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True,
    "peft_version": "0.21.2",
}  # fmt: skip


def written(path: Path, content: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def job_of(named: Path | str, **words: Any) -> Job:
    return read(GivenJob(named=str(named), words=Shorthand(gpus="H100", **words)), Path()).job


def test_a_config_and_its_folder_are_models(tmp_path: Path) -> None:
    path = written(tmp_path / "tiny" / "config.json", LLAMA)

    for named in (path, path.parent):
        job = job_of(named)
        assert (job.model.hf_config, job.metadata.name) == (LLAMA, "tiny")


def test_an_adapter_names_its_model(tmp_path: Path) -> None:
    path = written(tmp_path / "adapter_config.json", ADAPTER)

    for named in (path, tmp_path):
        job = job_of(named)
        assert job.model.adapter == Adapter(
            r=4, target_modules=("q_proj", "v_proj"), arguments={"lora_alpha": 32, "lora_dropout": 0.05}
        )
        assert job.model.hf_config is not None
        assert job.model.hf_config["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [({"target_modules": "model.*q_proj"}, "target_modules is a pattern"), ({"peft_type": "IA3"}, "peft_type is IA3")],
)
def test_an_adapter_that_a_spec_has_no_words_for_is_taken_by_peft_itself(
    tmp_path: Path, changed: Mapping[str, Any], problem: str
) -> None:
    path = written(tmp_path / "adapter_config.json", {**ADAPTER, **changed})

    with pytest.raises(SpecError, match=problem) as refusal:
        job_of(path)

    assert "--from-peft" in refusal.value.remedy


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("sft.yaml", "base_model: own/tiny\nadapter: lora\n", "axolotl train sft.yaml"),
        ("sft.yaml", "model_name_or_path: own/tiny\nstage: sft\n", "llamafactory-cli train sft.yaml"),
        ("sft.yaml", "model_name_or_path: own/tiny\nmax_length: 512\n", "trl sft --config sft.yaml"),
        (
            "sft.yaml",
            "model: {_component_: torchtune.models.llama3.llama3_8b}\ntokenizer: {}\n",
            "tune run lora_finetune_single_device --config sft.yaml",
        ),
        (
            "llama.toml",
            "[model]\nname = 'llama3'\n",
            "torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file llama.toml",
        ),
    ],
)
def test_a_recipe_of_another_tool_is_run_by_that_tool(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")

    assert cli.main(["spec", name]) == 2
    assert capsys.readouterr().err.endswith(f"change:  run the tool itself, on paper: planner run -- {command}\n")


def test_a_model_of_the_hubs_cache_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = tmp_path / "hub" / "models--own--tiny"
    written(folder / "snapshots" / "abc" / "config.json", LLAMA)
    written(folder / "snapshots" / "old" / "config.json", {**LLAMA, "num_hidden_layers": 1})
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc", encoding="utf-8")

    assert job_of("own/tiny").model.hf_config == LLAMA


@pytest.mark.parametrize("name", ["../tiny", "own/../tiny", "own/tiny/more", "", "a" * 300, "own\\tiny"])
def test_only_names_of_models_are_looked_for_in_the_cache(name: str, tmp_path: Path) -> None:
    assert hf_config.find(name, environment={"HF_HUB_CACHE": str(tmp_path)}) is None


def test_a_folder_of_the_same_name_goes_before_a_well_known_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "gpt2" / "config.json", LLAMA)
    monkeypatch.chdir(tmp_path)

    assert job_of("gpt2").model.hf_config == LLAMA


def test_a_spec_may_come_by_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = "model: {hf_config: gpt2}\ntrain: {sequence_length: 8}\ncluster: {gpu: T4}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(spec))

    assert cli.main(["spec", "-", "--batch", "3"]) == 0
    assert load_yaml(capsys.readouterr().out).train.micro_batch_size == 3


def test_what_is_wrong_on_standard_input_has_its_place_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("model: {hf_config: gpt2}\ntrian: {}\n"))

    assert cli.main(["spec", "-"]) == 2
    assert capsys.readouterr().err.startswith("standard input:2:1: unknown key `trian` in a job spec")


def test_a_spec_that_may_refer_to_nothing_may_name_a_well_known_model_and_no_other() -> None:
    spec = "model: {{hf_config: {}}}\ntrain: {{sequence_length: 8}}\ncluster: {{gpu: T4}}\n"

    assert load_yaml(spec.format("gpt2")).model.hf_config is not None
    for refused in ("own/tiny", "config.json"):
        with pytest.raises(SpecError):
            load_yaml(spec.format(refused))

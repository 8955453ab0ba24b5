"""The shipped configs are those of the models that they are called by: transformers builds them, and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from planner.job import hf_config
from planner.job.hf_config import KnownModel, looks_like_path

MODELS = hf_config.models()


def transformers_config(model: KnownModel) -> Any:
    rest = {key: value for key, value in model.config.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(model.config["model_type"], **rest)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_a_model_has_as_many_parameters_as_its_publisher_says(model: KnownModel) -> None:
    config = transformers_config(model)
    with torch.device("meta"):
        built = getattr(transformers, model.config["architectures"][0])(config)

    assert sum(parameter.numel() for parameter in built.parameters()) == model.parameters


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_a_config_has_keys_of_its_class_alone(model: KnownModel) -> None:
    kind = type(transformers_config(model))
    usual = kind()
    read_by_every_attention = {"head_dim"}

    unknown = {key for key in model.config if not hasattr(usual, key) and key not in kind.attribute_map}
    assert unknown - read_by_every_attention == set()


def test_a_model_is_found_by_its_name_its_other_names_and_without_its_publisher() -> None:
    qwen = MODELS["Qwen/Qwen3-8B"]

    assert [hf_config.by_name(name) for name in ("Qwen/Qwen3-8B", "qwen3-8b", "Qwen/Qwen3-8B-Base")] == [qwen] * 3
    assert hf_config.by_name("Qwen/Qwen3-9B") is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("unsloth/meta-llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("huggyllama/llama-7b", "meta-llama/Llama-2-7b-hf"),
        ("unsloth/phi-4", None),  # made over to Llama
        ("unsloth/Qwen3-9B", None),
        ("TheBloke/Llama-2-7b-hf", None),
    ],
)
def test_a_mirror_has_models_under_the_names_that_they_have(name: str, found: str | None) -> None:
    model = hf_config.shipped(name, None)

    assert (model and model.name) == found


def test_a_mirrors_own_config_on_this_machine_is_taken_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "models--unsloth--Qwen3-8B" / "snapshots" / "1" / "config.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"model_type": "qwen3"}', encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    assert hf_config.shipped("unsloth/Qwen3-8B", tmp_path) is None
    assert hf_config.describe_mirror("unsloth/Qwen3-8B", tmp_path) == []


def test_a_name_leads_to_one_model_and_is_no_path() -> None:
    for model in MODELS.values():
        for name in (model.name, *model.also):
            assert hf_config.by_name(name) is model
            assert not looks_like_path(name)


def test_a_model_is_found_by_its_config() -> None:
    found = [hf_config.by_config(dict(model.config)) for model in MODELS.values()]

    assert [each.config if each else None for each in found] == [model.config for model in MODELS.values()]


@pytest.mark.parametrize(
    "name",
    [
        "google/gemma-3-4b-it", "google/gemma-4-31B-it", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1",
        "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3.5-27B", "Qwen/QwQ-32B", "meta-llama/Llama-3.3-70B-Instruct",
        "meta-llama/Llama-3.2-11B-Vision", "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "microsoft/Phi-4-mini-instruct", "mistralai/Ministral-8B-Instruct-2410",
        "mistralai/Ministral-3-8B-Instruct-2512", "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        "openai/gpt-oss-120b", "allenai/OLMo-2-0325-32B-Instruct", "allenai/Olmo-3-7B-Think",
        "HuggingFaceTB/SmolLM3-3B", "zai-org/GLM-4.5-Air", "zai-org/GLM-4.6", "moonshotai/Kimi-K2-Instruct",
        "MiniMaxAI/MiniMax-M2.5", "ibm-granite/granite-3.3-8b-instruct", "answerdotai/ModernBERT-large",
    ],
)  # fmt: skip
def test_the_families_of_the_last_two_years_are_known(name: str) -> None:
    assert hf_config.by_name(name) is not None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("qwen3-8", ["Qwen/Qwen3-8B"]),
        ("Qwen/Qwen2.5-VL-7B", ["Qwen/Qwen2.5-VL-7B-Instruct"]),
        ("llama-4-scout", ["meta-llama/Llama-4-Scout-17B-16E"]),
        ("Llama-3.1-8B-Instrct", ["meta-llama/Llama-3.1-8B"]),
        ("mistrall-7B-v0.1", ["mistralai/Mistral-7B-v0.1"]),
        ("Mistral-7B", ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3"]),
        ("mistral 7b", ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3"]),
        ("qwen3_8b", ["Qwen/Qwen3-8B"]),
        ("bert-base", ["bert-base-uncased"]),
    ],
)
def test_a_name_that_is_misspelt_or_not_whole_leads_to_models_of_its_own_size_and_kind(
    written: str, meant: list[str]
) -> None:
    assert hf_config.near_models(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "Qwen/Qwen3-9B", "google/gemma-3-9b-it", "deepseek-ai/DeepSeek-V4", "Qwen/Qwen2.5-Omni-7B",
        "Qwen3-Embedding-8B", "meta-llama/Llama-3-7B", "gpt5", "gpt2-xxl", "roberta-large",
        "Qwen/Qwen3-8B-FP8", "zai-org/GLM-4.7",
    ],
)  # fmt: skip
def test_a_model_of_another_version_size_or_kind_is_never_taken_for_the_one_that_was_written(written: str) -> None:
    assert hf_config.near_models(written) == []

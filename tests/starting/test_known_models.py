"""The shipped configs are those of the models that they are called by: transformers builds them, and counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from planner.job import known_models
from planner.job.hf_config import looks_like_path
from planner.job.known_models import KnownModel

MODELS = known_models.models()


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

    assert [known_models.by_name(name) for name in ("Qwen/Qwen3-8B", "qwen3-8b", "Qwen/Qwen3-8B-Base")] == [qwen] * 3
    assert known_models.by_name("Qwen/Qwen3-9B") is None


def test_a_name_leads_to_one_model_and_is_no_path() -> None:
    for model in MODELS.values():
        for name in (model.name, *model.also):
            assert known_models.by_name(name) is model
            assert not looks_like_path(name)


def test_a_model_is_found_by_its_config() -> None:
    found = [known_models.by_config(dict(model.config)) for model in MODELS.values()]

    assert [each.config if each else None for each in found] == [model.config for model in MODELS.values()]


def test_about_forty_models_and_more_are_known() -> None:
    assert len(MODELS) >= 40

"""What a transformers model takes, found in its config and its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from planner.errors import SpecError
from planner.job.schema import Input, Job, Model, Train
from planner.training import inputs
from planner.training.inputs import Feed
from planner.training.models.build import build

TABLE = yaml.safe_load((Path(__file__).parents[1] / "data" / "architectures.yaml").read_text())["architectures"]
CPU = torch.device("cpu")


def feed(name: str, *, head: str = "", tokens: int = 16, given: dict[str, Input] | None = None) -> Feed:
    spec = Job(
        model=Model(hf_config=TABLE[name]["config"], head=head),
        train=Train(sequence_length=tokens, inputs=given or {}),
    )
    return inputs.find_feed(build(spec.model, CPU), spec)


def shapes(described: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(spec.shape) for name, spec in described.items()}


@pytest.mark.parametrize(
    ("name", "arguments", "labels"),
    [
        ("llama", {"input_ids": (16,)}, {"labels": (16,)}),
        ("bert", {"input_ids": (16,)}, {"labels": (16,)}),
        ("t5", {"input_ids": (16,)}, {"labels": (16,)}),
        ("whisper", {"input_features": (8, 32)}, {"labels": (16,)}),
        ("vit", {"pixel_values": (3, 32, 32)}, {"labels": ()}),
        ("resnet", {"pixel_values": (3, 224, 224)}, {"labels": ()}),
        ("audio-spectrogram-transformer", {"input_values": (32, 16)}, {"labels": ()}),
        ("wav2vec2", {"input_values": (160_000,)}, {}),
        ("clip", {"input_ids": (16,), "pixel_values": (3, 32, 32)}, {}),
    ],
)
def test_sizes_come_from_the_config(name: str, arguments: Any, labels: Any) -> None:
    found = feed(name)

    assert (shapes(found.arguments), shapes(found.labels)) == (arguments, labels)


@pytest.mark.parametrize(
    ("name", "head", "labels"),
    [
        ("llama", "sequence_classification", {"labels": ()}),
        ("bert", "token_classification", {"labels": (16,)}),
        ("bert", "question_answering", {"start_positions": (), "end_positions": ()}),
        ("segformer", "semantic_segmentation", {"labels": (64, 64)}),
        ("wav2vec2", "audio_classification", {"labels": ()}),
    ],
)
def test_labels_are_those_of_the_head(name: str, head: str, labels: Any) -> None:
    assert shapes(feed(name, head=head).labels) == labels


def test_an_encoder_decoder_makes_its_decoders_input_from_labels_only_for_its_own_loss() -> None:
    found = feed("bart")

    by_hand = inputs.make(found, 2, own_loss=False)
    own = inputs.make(found, 2, own_loss=True)

    assert set(by_hand) == {"input_ids", "decoder_input_ids", "labels"}
    assert set(own) == {"input_ids", "labels"}


def test_a_transcript_is_only_for_the_models_own_loss() -> None:
    found = feed("wav2vec2")

    assert set(inputs.make(found, 2, own_loss=False)) == {"input_values"}
    assert shapes(found.own_labels) == {"labels": (16,)}


def test_the_first_tokens_of_a_sequence_stand_for_the_image() -> None:
    ids = inputs.make(feed("llava", tokens=32), 2, own_loss=False)["input_ids"]

    is_image = ids == TABLE["llava"]["config"]["image_token_index"]
    assert is_image.tolist() == [[True] * 16 + [False] * 16] * 2


def test_where_pictures_have_any_size_the_model_is_trained_on_text() -> None:
    config = {
        "model_type": "mistral3",
        "text_config": TABLE["llava"]["config"]["text_config"],
        "vision_config": {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "image_size": 1540, "patch_size": 14},
    }  # fmt: skip
    spec = Job(model=Model(hf_config=config), train=Train(sequence_length=32))

    assert set(inputs.find_feed(build(spec.model, CPU), spec).arguments) == {"input_ids"}


def test_an_image_that_does_not_fit_into_the_sequence_is_refused() -> None:
    with pytest.raises(SpecError) as refusal:
        feed("llava", tokens=16)

    assert str(refusal.value) == (
        "train.sequence_length: an image takes 16 of the 16 tokens of a sequence\n"
        "  change:  raise train.sequence_length above 16"
    )


def test_the_length_of_a_sequence_has_to_be_said() -> None:
    with pytest.raises(SpecError) as refusal:
        feed("llama", tokens=0)

    assert str(refusal.value) == (
        "train.sequence_length: a llama model takes tokens, and their number is not said\n"
        "  allowed: a whole number from 1"
    )


def test_the_job_has_the_last_word() -> None:
    mask = Input(shape=(16,), dtype="int64")

    found = feed("bert", given={"attention_mask": mask, "labels": Input(shape=(7,), dtype="int64")})

    assert shapes(found.arguments) == {"input_ids": (16,), "attention_mask": (16,)}
    assert shapes(found.labels) == {"labels": (7,)}


def test_an_input_that_the_model_does_not_take_is_refused() -> None:
    with pytest.raises(SpecError, match="ViTForImageClassification does not take the input 'pixels'"):
        feed("vit", given={"pixels": Input(shape=(3, 32, 32))})

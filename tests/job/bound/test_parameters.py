"""How many parameters a model has, by arithmetic: for every family as many as the class of transformers has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from planner.job.bound.parameters import elements_of, families
from planner.job.schema import Decoder, Input, Job, Loss, Model, Optimizer, Train
from planner.training import step
from planner.training.models.build import build

SIZES = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 6, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 32, "rotary_dim": 4, "vocab_size": 256,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
ENCODER = {**SIZES, "max_position_embeddings": 40, "type_vocab_size": 3}
PICTURES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
            "image_size": 35, "patch_size": 8}  # fmt: skip

SMALL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(families(), SIZES),
    **{name: {**SIZES, **EXPERTS} for name in ("qwen2_moe", "qwen3_moe", "olmoe", "mixtral", "gpt_oss")},
    "qwen2_moe": {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 36},
    "deepseek_v2": {**SIZES, **LATENT},
    "deepseek_v3": {**SIZES, **LATENT, "n_shared_experts": 3},
    "gpt2": GPT2,
    "gptj": GPT2,
    "gpt_neo": {"hidden_size": 48, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
                "max_position_embeddings": 40, "vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2},
    "opt": {**SIZES, "ffn_dim": 80, "max_position_embeddings": 40},
    "bert": ENCODER,
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    "vit": PICTURES,
}  # fmt: skip
OWN_KEYS: dict[str, list[dict[str, Any]]] = {
    "llama": [{"attention_bias": True}, {"mlp_bias": True}],
    "qwen2_moe": [
        {"qkv_bias": False},
        {"mlp_only_layers": [1, 1, 7]},
        {"decoder_sparse_step": 2, "num_hidden_layers": 5},
        {"decoder_sparse_step": 2, "num_hidden_layers": 5, "mlp_only_layers": [0, 3]},
    ],
    "qwen3_moe": [{"mlp_only_layers": [2]}, {"decoder_sparse_step": 3}],
    "deepseek_v2": [{"q_lora_rank": None}, {"first_k_dense_replace": 0}, {"first_k_dense_replace": 9},
                    {"mlp_bias": True}],
    "deepseek_v3": [{"q_lora_rank": None}, {"first_k_dense_replace": 0}],
    "phi": [{"qk_layernorm": True}],
    "cohere": [{"use_qk_norm": True}],
    "starcoder2": [{"use_bias": False}],
    "stablelm": [{"qk_layernorm": True}, {"use_parallel_residual": True}, {"use_qkv_bias": True}],
    "smollm3": [{"mlp_bias": True}],
    "gpt2": [{"n_inner": 100}],
    "gpt_neo": [{"intermediate_size": 100}],
    "gptj": [{"n_inner": 100}],
    "opt": [{"word_embed_proj_dim": 24}, {"do_layer_norm_before": False}],
    "vit": [{"qkv_bias": False}, {"num_channels": 1}],
}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": False},
    {"attention_bias": True},
    {"attention_bias": False},
    {"head_dim": 10},
]
"""What any config may say; families that do not know a key leave it alone, in transformers and here."""


def model(model_type: str, content: Mapping[str, Any], **more: Any) -> Model:
    return Model(hf_config={"model_type": model_type, **content}, **more)


def built_elements(wanted: Model) -> int:
    with torch.device("meta"):
        module = build(wanted, torch.device("meta"))
    named = dict(module.named_parameters())
    # The classes of a picture's label are no part of what is counted; nor is a bias beside that of an untied decoder,
    # which nothing reads.
    unread = (
        {"cls.predictions.bias", "lm_head.bias"} if any(name.endswith(".decoder.bias") for name in named) else set()
    )
    return sum(
        each.numel() for name, each in named.items() if not name.startswith("classifier.") and name not in unread
    )


def refused(wanted: Model) -> bool:
    try:
        built_elements(wanted)
    except Exception:
        return True
    return False


@pytest.mark.parametrize("model_type", families())
def test_a_family_counts_what_its_class_has(model_type: str) -> None:
    usual = VARIANTS[:-1] if model_type == "vit" else VARIANTS
    for change in [*usual, *OWN_KEYS.get(model_type, [])]:
        wanted = model(model_type, {**SMALL[model_type], **change})
        if not change or not refused(wanted):
            assert elements_of(wanted) == built_elements(wanted), change


def test_a_vision_transformer_with_heads_of_another_size_counts_nothing() -> None:
    assert elements_of(model("vit", {**PICTURES, "head_dim": 10})) == 0


@pytest.mark.parametrize("model_type", families())
def test_a_config_that_says_nothing_has_the_sizes_of_its_class(model_type: str) -> None:
    said: dict[str, Any] = {
        "gpt2": {"n_layer": 2},
        "gptj": {"n_layer": 2},
        "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
        "nemotron": {"num_hidden_layers": 2, "num_key_value_heads": 48},  # transformers 5.23 needs it said
    }.get(model_type, {"num_hidden_layers": 2})
    wanted = model(model_type, said)

    assert elements_of(wanted) == built_elements(wanted)


@pytest.mark.parametrize("model_type", families())
def test_every_parameter_that_is_counted_is_trained(model_type: str) -> None:
    """Of a real step on the CPU: the optimizer keeps a momentum of whatever got a gradient."""
    inputs = {"pixel_values": Input(shape=(3, 35, 35))} if model_type == "vit" else {}
    train = Train(
        micro_batch_size=2, sequence_length=0 if inputs else 16, inputs=inputs, iterations=1,
        optimizer=Optimizer(name="SGD", arguments={"momentum": 0.9}), loss=Loss(),
    )  # fmt: skip
    wanted = model(model_type, SMALL[model_type])
    outcome = step.run(Job(model=wanted, train=train), torch.device("cpu"))

    assert elements_of(wanted) <= sum(each.numel() for each in outcome.optimizer.state)


@pytest.mark.parametrize("head", ["sequence_classification", "token_classification", "question_answering"])
@pytest.mark.parametrize("model_type", ["llama", "mixtral", "gpt2", "bert"])
def test_another_head_has_the_body_at_least(model_type: str, head: str) -> None:
    content = SMALL[model_type]
    by_head = model(model_type, content, head=head)

    assert 0 < elements_of(by_head) <= built_elements(by_head)
    assert elements_of(model(model_type, {**content, "tie_word_embeddings": True})) - elements_of(by_head) in (
        0,
        # BERT's own head: a layer, a norm and a bias.
        48 * 49 + 2 * 48 + 256,
    )


@pytest.mark.parametrize("model_type", families())
def test_the_usual_class_may_be_named(model_type: str) -> None:
    plain = model(model_type, SMALL[model_type])
    named = model(model_type, {**SMALL[model_type], "architectures": [families()[model_type].main_class]})

    assert elements_of(named) == elements_of(plain) > 0
    assert built_elements(named) == built_elements(plain)


@pytest.mark.parametrize(
    ("content", "head"),
    [
        ({"architectures": ["LlamaModel"]}, ""),
        ({"architectures": ["BertForMaskedLM"]}, ""),
        ({"architectures": [7, "LlamaForCausalLM"]}, ""),
        ({"architectures": "LlamaForCausalLM"}, ""),
        ({}, "base"),
        ({}, "masked_lm"),
        ({"hidden_size": "4096"}, ""),
        ({"hidden_size": 4096.0}, ""),
        ({"hidden_size": True}, ""),
        ({"hidden_size": None}, ""),
        ({"hidden_size": -1}, ""),
        ({"hidden_size": 2**41}, ""),
        ({"num_attention_heads": 0}, ""),
        ({"tie_word_embeddings": "yes"}, ""),
        ({"num_key_value_heads": [8]}, ""),
    ],
)
def test_what_is_not_understood_counts_nothing(content: dict[str, Any], head: str) -> None:
    assert elements_of(model("llama", content, head=head)) == 0


@pytest.mark.parametrize("model_type", ["resnet", "unheard-of", 7, None, ["llama"]])
def test_an_unknown_family_counts_nothing(model_type: Any) -> None:
    assert elements_of(Model(hf_config={"model_type": model_type})) == 0


def test_two_names_of_one_size_that_contradict_each_other_count_nothing() -> None:
    assert elements_of(model("gpt2", {"n_embd": 48, "hidden_size": 64, "n_head": 4})) == 0
    assert elements_of(model("mixtral", {**SIZES, "num_experts": 4, "num_local_experts": 8})) == 0


def test_a_name_that_transformers_also_takes_is_understood() -> None:
    wanted = model("gpt2", {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4})

    assert elements_of(wanted) == built_elements(wanted)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pairs", [1, 4])
def test_the_built_in_decoder_is_counted_exactly(tied: bool, pairs: int) -> None:
    decoder = Decoder(layers=3, hidden=64, heads=4, kv_heads=pairs, ffn=96, vocab=100, tie_embeddings=tied)

    assert elements_of(Model(decoder=decoder)) == built_elements(Model(decoder=decoder))


def test_of_code_nothing_is_known() -> None:
    assert elements_of(Model(factory="shop:model")) == 0

"""What a token of the KV cache takes, by a model's config."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.job.schema import Decoder, Model
from planner.tracing.rollout_engine import KvShape, find_kv_shape

LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "hidden_size": 4096}  # fmt: skip


def test_keys_and_values_of_every_kv_head_in_every_layer() -> None:
    shape = find_kv_shape(Model(hf_config=LLAMA))

    assert shape == KvShape(layers=32, kv_heads=8, head_dim=128)
    assert shape.bytes_per_token(1, "bfloat16") == 131_072


def test_heads_are_divided_over_the_ranks_until_each_has_one() -> None:
    shape = KvShape(layers=1, kv_heads=8, head_dim=128)

    assert [shape.bytes_per_token(ranks, "bfloat16") for ranks in (2, 8, 16)] == [2048, 512, 512]


def test_a_latent_cache_is_whole_on_every_rank() -> None:
    shape = find_kv_shape(Model(hf_config={**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}))

    assert shape.bytes_per_token(4, "bfloat16") == 32 * 576 * 2


def test_heads_may_be_wider_than_their_share_of_the_hidden_states() -> None:
    assert find_kv_shape(Model(hf_config={**LLAMA, "head_dim": 256})).head_dim == 256


def test_the_text_part_of_a_config_counts() -> None:
    assert find_kv_shape(Model(hf_config={"model_type": "x", "text_config": LLAMA})).layers == 32


def test_the_built_in_decoder_says_it_itself() -> None:
    decoder = Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=512)

    assert find_kv_shape(Model(decoder=decoder)).bytes_per_token(1, "fp8") == 2 * 2 * 2 * 16


@pytest.mark.parametrize(
    "change",
    [{"layer_types": ["linear_attention", "full_attention"]}, {"is_encoder_decoder": True}, {"hidden_size": 0}],
)
def test_what_is_not_known_is_said(change: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="KV cache of this model is not known"):
        find_kv_shape(Model(hf_config={**LLAMA, **change}))

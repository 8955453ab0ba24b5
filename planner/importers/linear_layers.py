"""Names the linear layers of models, for programs that adapt "all" of them: those of every block, the head left out.

As transformers 5.23 builds the models; a test builds each and looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2"), _OF_LLAMA),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
}


def names_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names for a model's config; empty for a model that is not in the table."""
    return NAMES.get(str(config.get("model_type")), ())

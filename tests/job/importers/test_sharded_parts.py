"""The names of a model's parts are those that accelerate itself finds in the model that transformers builds."""

from __future__ import annotations

import pytest
import torch
from accelerate.utils.fsdp_utils import _find_final_norm
from transformers import AutoConfig, AutoModelForCausalLM

from planner.job.importers import fsdp

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 128, "pad_token_id": 0, "head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize("model_type", fsdp.PARTS)
def test_the_parts_are_those_of_the_model(model_type: str) -> None:
    config = AutoConfig.for_model(model_type, **SMALL)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    names = {id(module): name for name, module in model.named_modules()}
    embedding, head, norm = model.get_input_embeddings(), model.get_output_embeddings(), _find_final_norm(model)

    found = fsdp.Parts(
        layer=next(iter(model._no_split_modules)),
        embedding=names[id(embedding)],
        norm=names[id(norm)],
        head=names[id(head)],
        tied=config.tie_word_embeddings,
    )

    assert found == fsdp.PARTS[model_type]
    assert len(model._no_split_modules) == 1

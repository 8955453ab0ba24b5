"""The model that Megatron-LM's arguments describe: the built-in decoder, a GPT-2 or a Mixtral of transformers.

Sizes that are not written follow megatron/training/arguments.py (validate_args) of Megatron-LM with megatron-core 0.20,
the padding of the vocabulary its tokenizer (vocab_size_with_padding).
"""

from __future__ import annotations

from typing import Any

from planner.importers.megatron_arguments import Arguments, option
from planner.importers.recipes import Recipe
from planner.job.nodes import node_from_data

_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "seq_length", "micro_batch_size")
_LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
_GPT = "none of --swiglu, --disable-bias-linear, --group-query-attention, --qk-layernorm, --kv-channels, rope, RMSNorm"
DROPOUT = "dropout is not planned in this model: Megatron-LM keeps masks for it, so it may take more"
TIED = (
    "embedding and head are planned as two parameters: under a pipeline the first and the last stage keep a copy each,"
    " as Megatron-LM does"
)
EXPERTS = (
    "the experts are Mixtral's of transformers: Megatron-LM's dispatcher, permutation and grouped products keep other"
    " tensors"
)


def tell_model(arguments: Arguments, recipe: Recipe) -> None:
    """Puts the model into the recipe. Raises SpecError for sizes that are missing or contradict each other."""
    _check_required(arguments)
    _check_sizes(arguments)
    if arguments["pipeline_model_parallel_size"] > 1 and not arguments["untie_embeddings_and_output_weights"]:
        recipe.supposed += (TIED,)
    is_llama, is_gpt = _is_llama(arguments), _is_gpt(arguments)
    if not (is_llama or (is_gpt and not arguments["num_experts"])):
        raise arguments.fault(
            "num_experts" if arguments["num_experts"] else "normalization",
            "stands beside layers that are neither Llama's nor GPT's",
            f"{_LLAMA}; or, without experts, {_GPT}",
            "make them one of the two, or run the program itself (planner run)",
        )
    if is_gpt:
        _tell_gpt(arguments, recipe)
        return
    if arguments["hidden_dropout"] or arguments["attention_dropout"]:
        recipe.supposed += (DROPOUT,)
    if arguments["num_experts"]:
        _tell_mixtral(arguments, recipe)
    else:
        recipe.decoder = _decoder(arguments)


def _check_required(arguments: Arguments) -> None:
    missing = [name for name in _REQUIRED if not arguments[name]]
    if not missing:
        return
    names = ", ".join(option(name) for name in missing)
    raise arguments.fault(
        missing[0],
        f"is missing or 0; what is missing in all: {names}",
        "whole numbers from 1",
        "add them; a vocabulary's size is not read from tokenizers",
    )


def _check_sizes(arguments: Arguments) -> None:
    hidden, heads = arguments["hidden_size"], arguments["num_attention_heads"]
    if hidden % heads and not arguments["kv_channels"]:
        raise arguments.fault(
            "hidden_size",
            f"is {hidden}, no multiple of --num-attention-heads ({heads})",
            "a multiple, or --kv-channels",
        )
    if bool(arguments["num_query_groups"]) != arguments["group_query_attention"]:
        raise arguments.fault(
            "num_query_groups",
            "and --group-query-attention go together, and one of them is missing",
            "both or none",
            "add the other; alone Megatron-LM does not read the number",
        )
    if heads % (groups := _groups(arguments)):
        raise arguments.fault(
            "num_query_groups", f"is {groups}, and --num-attention-heads {heads}", "a divisor of the heads"
        )
    positions, tokens = arguments["max_position_embeddings"], arguments["seq_length"]
    if positions is not None and positions < tokens:
        raise arguments.fault(
            "max_position_embeddings", f"is {positions}, and --seq-length {tokens}", f"a number from {tokens}"
        )
    if arguments["num_experts"] and not 0 < arguments["moe_router_topk"] <= arguments["num_experts"]:
        raise arguments.fault(
            "moe_router_topk",
            f"is {arguments['moe_router_topk']}, and --num-experts {arguments['num_experts']}",
            f"1 to {arguments['num_experts']}",
        )


def _is_rotary(arguments: Arguments) -> bool:
    return arguments["position_embedding_type"] == "rope" or bool(arguments["use_rotary_position_embeddings"])


def _is_llama(arguments: Arguments) -> bool:
    fits = arguments["swiglu"] and arguments["normalization"] == "RMSNorm" and arguments["disable_bias_linear"]
    return bool(fits and _is_rotary(arguments) and not (arguments["num_experts"] and arguments["qk_layernorm"]))


def _is_gpt(arguments: Arguments) -> bool:
    other = ("swiglu", "disable_bias_linear", "group_query_attention", "qk_layernorm", "kv_channels")
    learned = arguments["position_embedding_type"] == "learned_absolute" and not _is_rotary(arguments)
    return learned and arguments["normalization"] == "LayerNorm" and not any(arguments[name] for name in other)


def _groups(arguments: Arguments) -> int:
    return int(arguments["num_query_groups"] or arguments["num_attention_heads"])


def _ffn(arguments: Arguments) -> int:
    hidden = arguments["hidden_size"]
    default = int((4 * hidden * 2 / 3) / 64) * 64 if arguments["swiglu"] else 4 * hidden
    return int(arguments["ffn_hidden_size"] or default)


def _vocabulary(arguments: Arguments) -> int:
    """Padded, so that each rank of tp has a part of the same size."""
    multiple = max(1, arguments["make_vocab_size_divisible_by"] * arguments["tensor_model_parallel_size"])
    return int(-(-arguments["vocab_size"] // multiple) * multiple)


def _is_tied(arguments: Arguments) -> bool:
    return not arguments["untie_embeddings_and_output_weights"] and arguments["pipeline_model_parallel_size"] <= 1


def _decoder(arguments: Arguments) -> dict[str, int]:
    found: dict[str, int] = {
        "layers": arguments["num_layers"],
        "hidden": arguments["hidden_size"],
        "heads": arguments["num_attention_heads"],
        "kv_heads": _groups(arguments),
        "ffn": _ffn(arguments),
        "vocab": _vocabulary(arguments),
    }
    if arguments["kv_channels"]:
        found["head_dim"] = arguments["kv_channels"]
    return found | {
        name: True
        for name, holds in (("tie_embeddings", _is_tied(arguments)), ("qk_norm", arguments["qk_layernorm"]))
        if holds
    }


def _tell_mixtral(arguments: Arguments, recipe: Recipe) -> None:
    recipe.supposed += (EXPERTS,)
    content = {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_hidden_layers": arguments["num_layers"],
        "hidden_size": arguments["hidden_size"],
        "num_attention_heads": arguments["num_attention_heads"],
        "num_key_value_heads": _groups(arguments),
        "intermediate_size": arguments["moe_ffn_hidden_size"] or _ffn(arguments),
        "num_local_experts": arguments["num_experts"],
        "num_experts_per_tok": arguments["moe_router_topk"],
        "vocab_size": _vocabulary(arguments),
        "max_position_embeddings": arguments["max_position_embeddings"] or arguments["seq_length"],
        "sliding_window": None,
        "tie_word_embeddings": _is_tied(arguments),
    }
    if arguments["kv_channels"]:
        content["head_dim"] = arguments["kv_channels"]
    _tell_config(recipe, content)


def _tell_gpt(arguments: Arguments, recipe: Recipe) -> None:
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        if arguments[name] > 1:
            raise arguments.fault(
                name,
                f"is {arguments[name]}, and a model with learned positions and biases is planned as transformers'"
                " GPT-2, which has no plan for it",
                "1, or a model as Llama",
                f"with {_LLAMA} it is planned as the built-in decoder",
            )
    _tell_config(
        recipe,
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": arguments["num_layers"],
            "n_embd": arguments["hidden_size"],
            "n_head": arguments["num_attention_heads"],
            "n_inner": _ffn(arguments),
            "n_positions": arguments["max_position_embeddings"] or arguments["seq_length"],
            "vocab_size": _vocabulary(arguments),
            "activation_function": "gelu",
            "embd_pdrop": arguments["hidden_dropout"],
            "resid_pdrop": arguments["hidden_dropout"],
            "attn_pdrop": arguments["attention_dropout"],
            "tie_word_embeddings": _is_tied(arguments),
        },
    )


def _tell_config(recipe: Recipe, content: dict[str, Any]) -> None:
    recipe.model = node_from_data(content, recipe.source, "model.hf_config")

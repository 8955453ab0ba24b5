"""LoRA by peft itself, and linear layers of the frozen base model in four bits by bitsandbytes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import nn

from planner.errors import SpecError
from planner.job import schema
from planner.training.keyword_arguments import check_arguments


def replace_linear_layers(model: nn.Module) -> list[Any]:
    """Every linear layer but the head's becomes one of bitsandbytes for four bits (nf4, double quantization), as
    transformers' `load_in_4bit` chooses them. They have no weights yet."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    replaced = []
    for parent in [module for module in model.modules() if type(module) is not nn.Linear]:
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not head:
                layer = bitsandbytes.nn.Linear4bit(
                    child.in_features, child.out_features, child.bias is not None,
                    compute_dtype=child.weight.dtype, quant_type="nf4", device="meta",
                )  # fmt: skip
                layer.weight = None
                setattr(parent, name, layer)
                replaced.append(layer)
    model.is_loaded_in_4bit = True  # type: ignore[assignment]  # what peft asks for
    return replaced


def load_in_four_bits(layers: list[Any], device: torch.device) -> None:
    """Weights for the layers, packed on the device one by one: no more than one is there as a whole."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")
    for layer in layers:
        shape = layer.out_features, layer.in_features
        whole = torch.empty(shape, dtype=layer.compute_dtype, device=device)
        packed = bitsandbytes.nn.Params4bit(whole, requires_grad=False, quant_type="nf4", module=layer)
        del whole
        layer.weight = packed.to(device)


def prepare_for_training(model: nn.Module) -> nn.Module:
    """By peft's `prepare_model_for_kbit_training`, which casts to float32 what is not packed. What is recomputed
    `train.recompute` says."""
    peft: Any = importlib.import_module("peft")
    return peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # type: ignore[no-any-return]


_PLACE = "model.adapter"
_TAKEN = ("r", "target_modules", "use_dora")
"""Arguments that are keys of their own, or said by `kind`."""


def add_adapters(model: nn.Module, spec: schema.Adapter) -> nn.Module:
    """The model with the adapter's layers in place; they alone need gradients.

    Adapters of a bfloat16 or float16 model are float32, as `get_peft_model` makes them. Raises SpecError for
    modules that the model does not have, in peft's words.
    """
    peft: Any = importlib.import_module("peft")
    all_linear = schema.ALL_LINEAR in spec.target_modules
    config = peft.LoraConfig(
        **check_arguments(peft.LoraConfig, spec.arguments, _PLACE, taken=_TAKEN),
        r=spec.r,
        target_modules=schema.ALL_LINEAR if all_linear else list(spec.target_modules) or None,
        use_dora=spec.kind == "dora",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what peft asks transformers for
            wrapped = peft.get_peft_model(model, config)
    except ValueError as refusal:
        unknown = not spec.target_modules  # peft has no default for this architecture
        raise SpecError(
            f"peft refuses the adapter: {refusal}",
            allowed="names of the model's modules, or all-linear" if unknown else "",
            remedy="write model.adapter.target_modules: [all-linear] (--lora target=all-linear), or names as"
            " [q_proj, v_proj] (--lora target=q_proj+v_proj)"
            if unknown
            else "",
            place=f"{_PLACE}.target_modules",
        ) from refusal
    base: nn.Module = wrapped.get_base_model()
    return base


def trained_elements(model: nn.Module) -> dict[str, int]:
    """How many elements the adapter trains beside the modules of each name, in the order of the model."""
    elements: dict[str, int] = {}
    for path, parameter in model.named_parameters():
        before, found, _ = path.partition(".lora_")
        if found and parameter.requires_grad:
            name = before.rpartition(".")[2]
            # DeepSpeed takes the elements away and says how many there were.
            elements[name] = elements.get(name, 0) + int(getattr(parameter, "ds_numel", parameter.numel()))
    return elements

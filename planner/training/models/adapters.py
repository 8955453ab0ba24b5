"""LoRA by peft itself, and linear layers of the frozen base model in four bits."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.job import schema
from planner.training.keyword_arguments import check_arguments

_BLOCK, _SCALES = 64, 256


# The weight is packed two to a byte; each 64 weights have a scale of one byte, each 256 scales one of float32, and
# each layer the two tables and the offset that go with them. A forward and a backward each unpack the weight into a
# copy in the dtype of the product and drop it; the input is not kept, and the output has the dtype of the input
# (bitsandbytes 0.49: bitsandbytes/functional.py, autograd/_functions.py, nn/modules.py). The adapter's layer beside it
# clones the output first and casts its input only outside of autocast (peft 0.21, peft/tuners/lora/bnb.py).
class Linear4bit(nn.Linear):
    """In place of a linear layer that is frozen."""

    def __init__(self, like: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self.compute_dtype = like.weight.dtype
        device, elements = like.weight.device, like.weight.numel()
        packed = torch.empty(-(-elements // 2), 1, dtype=torch.uint8, device=device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = like.bias
        scales = -(-elements // _BLOCK)
        for name, size, dtype in (
            ("absmax", scales, torch.uint8),
            ("code", 16, torch.float32),
            ("nested_absmax", -(-scales // _SCALES), torch.float32),
            ("nested_code", 256, torch.float32),
            ("offset", 1, torch.float32),
        ):
            self.register_buffer(name, torch.empty(size, dtype=dtype, device=device))

    absmax: Tensor

    def unpack_weight(self, dtype: torch.dtype) -> Tensor:
        scales = torch.empty(self.absmax.shape, device=self.weight.device)  # the nested scales, unpacked first
        shape = self.out_features, self.in_features
        weight = torch.empty(shape, dtype=self.compute_dtype, device=self.weight.device)
        del scales
        return weight.to(dtype)

    def forward(self, given: Tensor) -> Tensor:
        result: Tensor = _UnpackedLinear.apply(given.to(self.compute_dtype), self)  # type: ignore[no-untyped-call]
        return result.to(given.dtype)


class _UnpackedLinear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, given: Tensor, layer: Linear4bit) -> Tensor:
        context.layer = layer
        return nn.functional.linear(given, layer.unpack_weight(given.dtype), layer.bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ context.layer.unpack_weight(gradient.dtype), None


def quantize(model: nn.Module) -> None:
    """Every linear layer but the head's, one after the other, as transformers' `load_in_4bit` chooses them."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for parent in [module for module in model.modules() if type(module) is not nn.Linear]:
        for name in [name for name, _ in parent.named_children()]:
            child = getattr(parent, name)
            if type(child) is nn.Linear and child is not head:
                setattr(parent, name, Linear4bit(child))
            del child


def prepare_for_training(model: nn.Module) -> nn.Module:
    """By peft's `prepare_model_for_kbit_training`, which casts to float32 what is not packed. What is recomputed
    `train.recompute` says."""
    peft: Any = importlib.import_module("peft")
    return peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # type: ignore[no-any-return]


def adapter_layer(peft_linear: Any) -> Any:
    """peft's layer of an adapter, with the forward that it has beside four bits."""

    class Adapted(peft_linear):  # type: ignore[misc]
        def forward(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
            result = self.base_layer(x, *arguments, **named).clone()
            for active in self.active_adapters:
                first, second = self.lora_A[active], self.lora_B[active]
                converts = not torch.is_autocast_enabled(x.device.type)
                dtype = result.dtype
                if converts:
                    x = x.to(first.weight.dtype)
                output = second(first(self.lora_dropout[active](x))) * self.scaling[active]
                result = result + (output.to(dtype) if converts else output)
            return result  # type: ignore[no-any-return]

    return Adapted


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
    if spec.kind == "qlora":
        linear = importlib.import_module("peft.tuners.lora").Linear
        config._register_custom_module({Linear4bit: adapter_layer(linear)})
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

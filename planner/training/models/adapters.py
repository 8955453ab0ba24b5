"""LoRA by peft itself: low-rank layers beside those of the base model, which is frozen.

peft is an extra (`peft`) and imported only for a job that names an adapter.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from torch import nn

from planner.distribution import install_command
from planner.errors import SpecError
from planner.job import schema
from planner.training.models import four_bit

_PLACE = "model.adapter"


def add_adapters(model: nn.Module, spec: schema.Adapter) -> nn.Module:
    """The model with the adapter's layers in place; they alone need gradients.

    Adapters of a bfloat16 or float16 model are float32, as `get_peft_model` makes them. Raises SpecError without peft,
    and for modules that the model does not have, in peft's words.
    """
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError as missing:
        raise SpecError(
            "an adapter needs peft, which is not installed here", remedy=install_command("peft"), place=_PLACE
        ) from missing
    config = peft.LoraConfig(
        r=spec.r,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=list(spec.target_modules) or None,
        use_dora=spec.kind == "dora",
    )
    if spec.kind == "qlora":
        linear = importlib.import_module("peft.tuners.lora").Linear
        config._register_custom_module({four_bit.Linear4bit: four_bit.adapter_layer(linear)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what peft asks transformers for
            wrapped = peft.get_peft_model(model, config)
    except ValueError as refusal:
        raise SpecError(f"peft refuses the adapter: {refusal}", place=f"{_PLACE}.target_modules") from refusal
    base: nn.Module = wrapped.get_base_model()
    return base

"""Builds the job's `model` as an `nn.Module` on the device, in the dtype of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from planner.errors import SpecError
from planner.job import schema
from planner.training.dtypes import floating
from planner.training.materialize import materialize
from planner.training.models import adapters, decoder, factory, four_bit


def build(model: schema.Model, device: torch.device) -> nn.Module:
    """The model in training mode.

    A transformers model and the built-in decoder are born on the device; a factory builds on the host, as programs
    do, and what it built is then moved, unless the model is to be split: then it builds without memory (`meta`), as
    such programs do. Its parameters and buffers keep their dtypes unless the job names one for all. Raises SpecError
    for a model that cannot be built.
    """
    if model.factory:
        with device if device.type == "meta" else nullcontext():
            module = factory.from_factory(model.factory, model.factory_arguments, model.factory_path)
        return _move_module(module, device, model.parameter_dtype).train()
    dtype = floating(model.parameter_dtype, place="model.parameter_dtype")
    if model.decoder is not None:
        with _born_on(device, dtype):
            return decoder.Decoder(model.decoder).train()
    if model.hf_config is not None:
        # transformers takes seconds to import: only jobs that name one of its models pay for it.
        from planner.training.models import transformers_models

        four_bits = model.adapter is not None and model.adapter.kind == "qlora"
        # Packed one by one as they are loaded, the layers of a model in four bits are never there as a whole.
        by_layers = four_bits and model.adapter is not None and model.adapter.load == "layers"
        with _born_on(torch.device("meta") if by_layers else device, dtype):
            module = transformers_models.from_config(model, dtype)
        if four_bits:
            four_bit.quantize(module)
        if by_layers:
            materialize(module, device)
        module = module.to(device)  # a model may name the host for a parameter of its own
        if model.adapter is not None:
            module = adapters.add_adapters(module, model.adapter)
        return module.train()
    raise SpecError("the job names no model", allowed="one of hf_config, factory, decoder", place="model")


def _move_module(module: nn.Module, device: torch.device, parameter_dtype: str) -> nn.Module:
    """By the model's own `to`, but for one with tables of complex numbers, which a dtype would make real."""
    if parameter_dtype == schema.AS_BUILT:
        return module.to(device)
    dtype = floating(parameter_dtype, place="model.parameter_dtype")

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    if any(tensor.is_complex() for tensor in (*module.parameters(), *module.buffers())):
        return module._apply(moved)  # type: ignore[no-any-return]
    return module.to(device=device, dtype=dtype)


@contextmanager
def _born_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)

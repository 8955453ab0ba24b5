"""From the job's `model` to an `nn.Module` on the device, in the dtype of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from planner.errors import SpecError
from planner.spec import job
from planner.training.dtypes import floating
from planner.training.models import decoder, factory


def build(model: job.Model, device: torch.device) -> nn.Module:
    """The model in training mode.

    A transformers model and the built-in decoder are born on the device; a factory builds on the host, as programs
    do, and what it built is then moved. Raises SpecError for a model that cannot be built.
    """
    dtype = floating(model.parameter_dtype, place="model.parameter_dtype")
    if model.factory:
        module = factory.from_factory(model.factory, model.factory_arguments, model.factory_path)
        return module.to(device=device, dtype=dtype).train()
    if model.decoder is not None:
        with _born_on(device, dtype):
            return decoder.Decoder(model.decoder).train()
    if model.hf_config is not None:
        # transformers takes seconds to import: only jobs that name one of its models pay for it.
        from planner.training.models import transformers_models

        with _born_on(device, dtype):
            module = transformers_models.from_config(model, dtype)
        return module.to(device).train()  # a model may name the host for a parameter of its own
    raise SpecError("the job names no model", allowed="one of hf_config, factory, decoder", place="model")


@contextmanager
def _born_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)

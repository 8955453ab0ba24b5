"""Builds the job's `model` as an `nn.Module` on the device: by a factory, a config or the built-in decoder."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.job import schema
from planner.job.code_rules import ANY_CODE, CodeRules
from planner.job.nodes import did_you_mean
from planner.training.models import adapters, decoder

STANDARD_DEVIATION = 0.02
"""Of the small random values that stand for trained ones."""


def materialize(model: nn.Module, device: torch.device, *, offloaded: bool = False) -> None:
    """Memory on `device` for every parameter and buffer, in place; small random weights, buffers of zeros.

    `offloaded`: parameters rest on the host, buffers do not, as fully_shard's
    CPUOffloadPolicy wants it. What is tied stays tied.
    """
    tied = tied_parameters(model)
    # From meta it gives each module a parameter of its own (torch 2.13).
    model.to_empty(device=torch.device("cpu") if offloaded else device)
    for (owner, first), *others in tied:
        for module, name in others:
            module._parameters[name] = owner._parameters[first]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                _local(parameter).normal_(0.0, STANDARD_DEVIATION)
    moved: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if _local(buffer).device.type == device.type:
                _local(buffer).zero_()
                continue
            if buffer not in moved:
                moved[buffer] = torch.zeros_like(buffer, device=device)
            module._buffers[name] = moved[buffer]


def tied_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Who holds a parameter together: modules and the name that each has for it."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    return [together for together in owners.values() if len(together) > 1]


def _local(tensor: Tensor) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor)


_PLACE = "model.factory"
_rules = ANY_CODE


def allow(rules: CodeRules) -> None:
    """From here on this process calls no factory but those; until then it calls any."""
    global _rules
    _rules = rules


def from_factory(factory: str, arguments: Mapping[str, Any], path: str = "") -> nn.Module:
    """The module that `factory` returns, on whichever device and in whichever dtype it made it.

    `path` is put in front of `sys.path` for the import and the call, and taken off again. Raises SpecError if the
    factory is missing, raises, or returns something else than an nn.Module, FactoryNotAllowedError for one that this
    process may not call (`allow`).
    """
    _rules.refuse_name(factory, path)
    with _importable(factory, path):
        build = _find(factory)
        _rules.refuse_foreign(factory, build)
        try:
            module = build(**arguments)
        except (SpecError, MemoryError):
            raise
        except Exception as failure:
            raise SpecError(
                f"the factory {factory} raised {type(failure).__name__}: {failure}",
                remedy="run the factory by itself; its arguments are model.factory_arguments",
                place=_PLACE,
            ) from failure
    if not isinstance(module, nn.Module):
        raise SpecError(
            f"the factory {factory} returned a {type(module).__name__}",
            allowed="a callable that returns a torch.nn.Module",
            place=_PLACE,
        )
    return module


@contextmanager
def _importable(factory: str, path: str) -> Iterator[None]:
    if not path:
        yield
        return
    sys.path.insert(0, path)
    importlib.invalidate_caches()
    try:
        # A process that has built another job's `models:build` has that job's `models` in memory.
        top = factory.partition(":")[0].partition(".")[0]
        here, loaded = importlib.machinery.PathFinder.find_spec(top, [path]), sys.modules.get(top)
        if here is not None and loaded is not None and getattr(loaded, "__file__", None) != here.origin:
            for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
                del sys.modules[name]
        yield
    finally:
        if path in sys.path:
            sys.path.remove(path)


def _find(factory: str) -> Callable[..., Any]:
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise SpecError(f"{factory!r} names no callable", allowed="module:callable", place=_PLACE)
    module = _import(module_name, factory)
    member: Any = module
    for part in name.split("."):
        if not hasattr(member, part):
            public = [member for member in vars(module) if not member.startswith("_")]
            remedy = did_you_mean(part, public) or "name a callable of that module"
            raise SpecError(f"{module_name} has no {name!r}", remedy=remedy, place=_PLACE)
        member = getattr(member, part)
    if not callable(member):
        raise SpecError(f"{factory} is of type {type(member).__name__}", allowed="a callable", place=_PLACE)
    return member  # type: ignore[no-any-return]


def _import(name: str, factory: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        missing = failure.name or name
        if name == missing or name.startswith(f"{missing}."):
            problem = f"there is no module {missing!r} for the factory {factory}"
        else:
            problem = f"the factory {factory} needs the module {missing!r}, which is not installed"
        raise SpecError(problem, remedy="install it, or set model.factory_path", place=_PLACE) from failure
    except Exception as failure:
        raise SpecError(
            f"importing {name} raised {type(failure).__name__}: {failure}", remedy="import it by itself", place=_PLACE
        ) from failure


def build(model: schema.Model, device: torch.device) -> nn.Module:
    """The model in training mode.

    A transformers model and the built-in decoder are born on the device; a factory builds on the host, as programs
    do, and what it built is then moved, unless the model is to be split: then it builds without memory (`meta`), as
    such programs do. Its parameters and buffers keep their dtypes unless the job names one for all. Raises SpecError
    for a model that cannot be built.
    """
    if model.factory:
        with device if device.type == "meta" else nullcontext():
            module = from_factory(model.factory, model.factory_arguments, model.factory_path)
        return _move_module(module, device, model.parameter_dtype).train()
    dtype = getattr(torch, model.parameter_dtype)
    if model.decoder is not None:
        with _born_on(device, dtype):
            return decoder.Decoder(model.decoder).train()
    if model.hf_config is None:
        raise SpecError("the job names no model", allowed="one of hf_config, factory, decoder", place="model")
    # transformers takes seconds to import: only jobs that name one of its models pay for it.
    from planner.training.models import transformers_models

    adapter = model.adapter
    four_bits = adapter is not None and adapter.kind == "qlora"
    with _born_on(torch.device("meta") if four_bits else device, dtype):
        module = transformers_models.from_config(model, dtype)
    if four_bits:
        packed = adapters.replace_linear_layers(module)
        materialize(module, device)
        adapters.load_in_four_bits(packed, device)
    module = module.to(device)  # a model may name the host for a parameter of its own
    if four_bits:
        module = adapters.prepare_for_training(module)
    return (module if adapter is None else adapters.add_adapters(module, adapter)).train()


def _move_module(module: nn.Module, device: torch.device, parameter_dtype: str) -> nn.Module:
    """By the model's own `to`, but for one with tables of complex numbers, which a dtype would make real."""
    if parameter_dtype == schema.AS_BUILT:
        return module.to(device)
    dtype = getattr(torch, parameter_dtype)

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

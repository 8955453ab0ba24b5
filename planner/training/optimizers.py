"""Optimizers: any class of `torch.optim` with its own arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from planner.errors import SpecError
from planner.job import schema
from planner.training import clipping, low_bit
from planner.training.wraps import in_backward
from planner.upstream import versions

_PLACE = "train.optimizer"
_NAME_PLACE = f"{_PLACE}.name"
_WANTS_A_CLOSURE = ("LBFGS",)


def names() -> list[str]:
    """The optimizers that a job can name: those of this torch's `torch.optim` that need no closure."""
    base = torch.optim.Optimizer
    found = (n for n, c in vars(torch.optim).items() if inspect.isclass(c) and issubclass(c, base) and c is not base)
    return sorted(name for name in found if name not in _WANTS_A_CLOSURE)


def all_names() -> list[str]:
    """Those of `torch.optim`, then those of other packages that are modelled."""
    return [*names(), *low_bit.MODELLED]


OptimizerMaker = Callable[[Any, list[nn.Parameter], dict[str, Any]], torch.optim.Optimizer]
"""Makes an optimizer of a class, over parameters, with arguments."""


def plain(kind: Any, trained: list[nn.Parameter], arguments: dict[str, Any]) -> torch.optim.Optimizer:
    # One kernel takes no DTensors of several meshes: each has a group of its own, as in transformers' Trainer (5.23).
    groups = clipping.by_mesh(trained)
    given = trained if len(groups) == 1 else [{"params": group} for group in groups]
    made: torch.optim.Optimizer = kind(given, **arguments)
    return made


def build(
    spec: schema.Optimizer, parameters: Iterable[nn.Parameter], made: OptimizerMaker = plain
) -> torch.optim.Optimizer:
    """The optimizer over the parameters that need gradients; `made` where it is more than its class alone.

    Raises SpecError for an unknown name (with the nearest ones), for an argument that the class does not take (with
    those it takes), for a value that it refuses, and for a model in which nothing is trained.
    """
    cls = _class(spec.name)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise SpecError("no parameter of the model needs a gradient: there is nothing to train", place="model")
    arguments = _check_arguments(cls, spec.arguments)
    try:
        return made(cls, trained, arguments)
    except (ValueError, TypeError, RuntimeError) as refusal:
        raise SpecError(f"{spec.name} refuses its arguments: {refusal}", place=_PLACE) from refusal


def with_state(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers that keep the state: those that others have inside, or the optimizer itself."""
    if isinstance(optimizer, in_backward.InBackwardOptimizer):
        return tuple(optimizer.inside.values())
    inside = getattr(optimizer, "optim", None)
    return (inside,) if isinstance(inside, torch.optim.Optimizer) else (optimizer,)


def _class(name: str) -> Any:
    known = all_names()
    if name in low_bit.MODELLED:
        return low_bit.MODELLED[name]
    if name in known:
        return getattr(torch.optim, name)
    if name in _WANTS_A_CLOSURE:
        raise SpecError(
            f"{name} evaluates the model several times in one step, which is not modelled",
            allowed=", ".join(known),
            place=_NAME_PLACE,
        )
    if name == "Muon":
        versions.require(name, place=_NAME_PLACE)
    by_lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=5, cutoff=0.5)
    # A wrong ending is likelier than a wrong beginning: AdamW before RAdam for `adamv`.
    near.sort(key=lambda other: other[:3] != name.lower()[:3])
    close = [by_lower[other] for other in near[:3]]
    raise SpecError(
        f"torch.optim has no optimizer {name!r}",
        allowed=", ".join(known),
        remedy=f"did you mean {', '.join(close)}?" if close else "",
        place=_NAME_PLACE,
    )


def _check_arguments(cls: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    allowed = [name for name in inspect.signature(cls).parameters if name != "params"]
    for name in arguments:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            raise SpecError(
                f"{cls.__name__} does not take the argument {name!r}",
                allowed=", ".join(allowed),
                remedy=f"did you mean {close[0]}?" if close else "",
                place=f"{_PLACE}.{name}",
            )
    # YAML has no tuples, and Adam compares its betas with one.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}

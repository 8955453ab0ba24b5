"""Finds the optimizer that transformers' Trainer makes of `optim` and its companions (5.23.0, trainer_optimizer.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import SpecError
from planner.job.nodes import Node

Values = Mapping[str, Node]

_ADAMS: Mapping[str, dict[str, Any]] = {
    "adamw_torch": {"name": "AdamW"},
    "adamw_torch_fused": {"name": "AdamW", "fused": True},
    "adamw_torch_8bit": {"name": "torchao.AdamW8bit", "block_size": 256},
    "adamw_torch_4bit": {"name": "torchao.AdamW4bit", "block_size": 256},
}
_OF_TORCH: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "sgd": ("SGD", ("momentum", "dampening", "weight_decay"), ("nesterov",)),
    "adagrad": ("Adagrad", ("lr_decay", "weight_decay", "eps"), ()),
    "rmsprop": ("RMSprop", ("momentum", "alpha", "eps", "weight_decay"), ("centered",)),
}
"""Class, and the numbers and flags that `optim_args` may give it."""
_OF_TORCHAO = ("adamw_torch_8bit", "adamw_torch_4bit")
PLANNED = (*_ADAMS, *_OF_TORCH)
_IN_32_BITS = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")


def optimizer_of(values: Values) -> dict[str, Any]:
    """`train.optimizer` as a spec writes it. Raises SpecError for an optimizer that is not planned."""
    written = values["optim"]
    name = str(written.value)
    if name in _OF_TORCHAO and values["optim_args"].value:
        raise SpecError(
            f"optim_args is {values['optim_args'].summary} beside {name}, and is not planned",
            allowed="null",
            remedy=f"write train.optimizer in JOB.yaml ({_ADAMS[name]['name']} takes block_size), without optim",
            place=values["optim_args"].place,
        )
    if name in _ADAMS:
        return {**_ADAMS[name], **_adam_arguments(values)}
    if name in _OF_TORCH:
        return _of_torch(name, values)
    why, remedy = "is not planned", ""
    if name in _IN_32_BITS:
        why = "keeps the state of embeddings in 32 bits and of the rest in 8, which is not planned"
        remedy = "for a lower bound, plan with train.optimizer bitsandbytes.AdamW8bit and without optim"
    raise SpecError(
        f"optim is {written.summary}, which {why}",
        allowed=", ".join(PLANNED),
        remedy=remedy or "name one of these, or plan without it and write train.optimizer in JOB.yaml",
        place=written.place,
    )


def _adam_arguments(values: Values) -> dict[str, Any]:
    return {
        "lr": values["learning_rate"].value,
        "betas": [values["adam_beta1"].value, values["adam_beta2"].value],
        "eps": values["adam_epsilon"].value,
        "weight_decay": values["weight_decay"].value,
    }


def _of_torch(name: str, values: Values) -> dict[str, Any]:
    kind, numbers, flags = _OF_TORCH[name]
    found: dict[str, Any] = {
        "name": kind, "lr": values["learning_rate"].value, "weight_decay": values["weight_decay"].value,
    }  # fmt: skip
    written = values["optim_args"]
    for part in str(written.value or "").replace(" ", "").split(","):
        key, _, value = part.partition("=")
        try:
            if key in numbers:
                found[key] = float(value)
            elif key in flags:
                found[key] = value.lower() in ("true", "1", "yes")
            elif key:
                raise ValueError
        except ValueError:
            raise SpecError(
                f"optim_args holds {part[:80]!a}",
                allowed=", ".join(f"{each}=..." for each in (*numbers, *flags)),
                remedy=f"write what {name} takes",
                place=written.place,
            ) from None
    return found

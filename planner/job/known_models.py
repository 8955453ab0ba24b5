"""The configs of well-known models, shipped with planner: what of their config.json decides memory.

Keys that are not there have the default of transformers' config class. A test builds each model by transformers and
counts its parameters against the number that its publisher gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from planner.job.nearest import nearest

_FILE = "known_models.json"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model; `config` is a transformers config without what does not matter to memory."""

    name: str
    """As its publisher calls it on the hub."""
    parameters: int
    """Trainable and other parameters, tied ones once."""
    also: tuple[str, ...]
    """Names of models of the very same config."""
    config: Mapping[str, Any]


@cache
def models() -> Mapping[str, KnownModel]:
    """Every model by its name."""
    content = json.loads(files("planner.job").joinpath(_FILE).read_text(encoding="utf-8"))
    return {
        name: KnownModel(name, entry["parameters"], tuple(entry["also"]), entry["config"])
        for name, entry in content.items()
    }


def by_name(name: str) -> KnownModel | None:
    """The model of that name, with the publisher or without, in letters of either case."""
    return _by_folded().get(name.casefold())


def by_config(config: Mapping[str, Any]) -> KnownModel | None:
    """The model that has exactly this config."""
    return next((each for each in models().values() if each.config == config), None)


def near(name: str, count: int = 3) -> list[str]:
    """Names that someone may have meant, the likeliest first; publishers are not compared."""
    short = name.rpartition("/")[2]
    called = {each.rpartition("/")[2]: model for each, model in _by_folded().items()}
    found = [called[each].name for each in nearest(short, called, count=4 * count)]
    return list(dict.fromkeys(found))[:count]


@cache
def _by_folded() -> dict[str, KnownModel]:
    found: dict[str, KnownModel] = {}
    for model in models().values():
        for name in (model.name, *model.also):
            for called in (name, name.rpartition("/")[2]):
                if found.setdefault(called.casefold(), model) is not model:
                    raise AssertionError(f"{called} names two models")
    return found

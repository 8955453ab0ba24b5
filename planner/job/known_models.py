"""The configs of well-known models, shipped with planner: what of their config.json decides memory.

Keys that are not there have the default of transformers' config class. A test builds each model by transformers and
counts its parameters against the number that its publisher gives.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from planner.job.size_limits import LONGEST_NAME

_FILE = "known_models.json"
_TRAINED_ON = {"base", "pt", "instruct", "it", "chat", "hf"}


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model; `config` is a transformers config without what does not matter to memory."""

    name: str
    """As its publisher calls it on the hub."""
    parameters: int
    """Trainable and other parameters, tied ones once."""
    also: tuple[str, ...]
    """Names of models whose config says the same of memory."""
    config: Mapping[str, Any]
    source: str = ""
    """Where its sizes are from; empty: its own config.json. The hub's total is that of the checkpoint's tensors."""


@cache
def models() -> Mapping[str, KnownModel]:
    """Every model by its name."""
    content = json.loads(files("planner.job").joinpath(_FILE).read_text(encoding="utf-8"))
    return {
        name: KnownModel(name, entry["parameters"], tuple(entry["also"]), entry["config"], entry.get("source", ""))
        for name, entry in content.items()
    }


def by_name(name: str) -> KnownModel | None:
    """The model of that name, with the publisher or without, in letters of either case."""
    return _by_folded().get(name.casefold())


def by_config(config: Mapping[str, Any]) -> KnownModel | None:
    """The model that has exactly this config."""
    return next((each for each in models().values() if each.config == config), None)


def near(name: str, count: int = 6) -> list[str]:
    """Names of the same version, size and kind that someone may have meant by one that is misspelt or not whole: those
    that go on where `name` ends, and those whose numbers are the same and whose words are alike. Publishers are not
    compared."""
    if len(name) > LONGEST_NAME:
        return []
    short = name.rpartition("/")[2].casefold()
    names = [each for model in models().values() for each in (model.name, *model.also)]
    called = {each.rpartition("/")[2].casefold(): each for each in names}
    longer = [other for other in called if re.match(re.escape(short) + r"[-_.a-z]", other) and len(short) > 2]
    alike = [other for other in called if _is_misspelt(short, other)]
    found: dict[str, str] = {}
    for each in longer + alike:
        found.setdefault(_by_folded()[each].name, called[each])
    return list(found.values())[:count]


def _is_misspelt(name: str, known: str) -> bool:
    words, others = _words(name), _words(known)
    if re.findall(r"\d+", name) != re.findall(r"\d+", known) or len(words) != len(others):
        return False
    return all(_are_alike(*pair) for pair in zip(words, others, strict=True))


def _are_alike(word: str, other: str) -> bool:
    return word == other or (len(word) > 3 and difflib.SequenceMatcher(None, word, other).ratio() > 0.75)


def _words(name: str) -> list[str]:
    """Without what says how a model of a size in numbers was trained on: its size and kind are the same."""
    words = re.findall(r"(?<!\d)[a-z]+", name)
    if not re.search(r"\d[bm](?![a-z])", name):
        return words
    return [each for each in words if not difflib.get_close_matches(each, _TRAINED_ON, cutoff=0.8)]


@cache
def _by_folded() -> dict[str, KnownModel]:
    found: dict[str, KnownModel] = {}
    for model in models().values():
        for name in (model.name, *model.also):
            for called in (name, name.rpartition("/")[2]):
                if found.setdefault(called.casefold(), model) is not model:
                    raise AssertionError(f"{called} names two models")
    return found

"""A transformers config, from a file, the hub's cache or the models that are shipped, read without transformers."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import SpecError, shorten
from planner.job.json_text import file_text, packaged_json, read_json
from planner.job.nodes import Node, node_from_data
from planner.job.size_limits import LONGEST_NAME

# Folders and variables are those of huggingface_hub 1.0 (constants.py, file_download.py). Nothing is downloaded.
_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}")


def find(name: str, file: str = "config.json", environment: Mapping[str, str] | None = None) -> Path | None:
    """The file of the revision `main`, or of the only other one; None if this machine does not have it."""
    if not _NAME.fullmatch(name) or ".." in name:
        return None
    environment = os.environ if environment is None else environment
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    folder = Path(cache).expanduser() / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        revisions = [revision] if re.fullmatch(r"\w+", revision) else []
    except (OSError, ValueError):
        revisions = []
    try:
        revisions = revisions or sorted(snapshot.name for snapshot in (folder / "snapshots").iterdir())
    except OSError:
        return None
    if len(revisions) != 1:
        return None
    path = folder / "snapshots" / revisions[0] / file
    return path if path.is_file() else None


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
    content = packaged_json("known_models.json")
    return {
        name: KnownModel(name, entry["parameters"], tuple(entry["also"]), entry["config"], entry.get("source", ""))
        for name, entry in content.items()
    }


def by_name(name: str) -> KnownModel | None:
    """The model of that name, with the publisher or without, in letters of either case."""
    return _by_folded().get(name.casefold())


_MIRRORS = ("nousresearch", "unsloth", "huggyllama")
"""Who uploads models of others again, under the names that they have."""


def shipped(name: str, folder: Path | None) -> KnownModel | None:
    """The well-known model of that name, or of which it is the copy of a mirror, unless a file or folder of the spec is
    called so, or this machine has the copy's own config."""
    if folder is not None and os.path.exists(folder / name):
        return None
    if (model := by_name(name)) is not None:
        return model
    owner, _, called = name.rpartition("/")
    model = by_name(called) if owner.casefold() in _MIRRORS else None
    # Unsloth's copies of Phi 3 and 4 are made over to Llama.
    is_other = model is None or model.config["model_type"] == "phi3" or (folder is not None and find(name) is not None)
    return None if is_other else model


def describe_mirror(name: Any, folder: Path | None) -> list[str]:
    """In a sentence, the model for which the copy of a mirror is taken; none for any other name or value."""
    model = shipped(name, folder) if isinstance(name, str) and by_name(name) is None else None
    return [] if model is None else [f"{name} is {model.name}, whose name it has (its config.json for another)"]


def by_config(config: Mapping[str, Any]) -> KnownModel | None:
    """The model that has exactly this config."""
    return next((model for model in models().values() if model.config == config), None)


def near_models(name: str, count: int = 6) -> list[str]:
    """Names of the same version, size and kind that someone may have meant by one that is misspelt or not whole: the
    same name, those that go on where `name` ends, and those whose numbers are the same and whose words are alike.
    Publishers are not compared."""
    if len(name) > LONGEST_NAME:
        return []
    short = re.sub(r"[\s_]+", "-", name.rpartition("/")[2].strip().casefold())
    names = [name for model in models().values() for name in (model.name, *model.also)]
    called = {name.rpartition("/")[2].casefold(): name for name in names}
    longer = [other for other in called if re.match(re.escape(short) + r"[-_.a-z]", other) and len(short) > 2]
    alike = [other for other in called if _is_misspelt(short, other)]
    near: dict[str, str] = {}
    for other in [short] * (short in called) + longer + alike:
        near.setdefault(_by_folded()[other].name, called[other])
    return list(near.values())[:count]


def _is_misspelt(name: str, known: str) -> bool:
    words, others = _words(name), _words(known)
    if re.findall(r"\d+", name) != re.findall(r"\d+", known) or len(words) != len(others):
        return False
    return all(
        word == other or (len(word) > 3 and difflib.SequenceMatcher(None, word, other).ratio() > 0.75)
        for word, other in zip(words, others, strict=True)
    )


def _words(name: str) -> list[str]:
    """Without what says how a model of a size in numbers was trained on: its size and kind are the same."""
    words = re.findall(r"(?<!\d)[a-z]+", name)
    if not re.search(r"\d[bm](?![a-z])", name):
        return words
    return [word for word in words if not difflib.get_close_matches(word, _TRAINED_ON, cutoff=0.8)]


@cache
def _by_folded() -> dict[str, KnownModel]:
    by_folded: dict[str, KnownModel] = {}
    for model in models().values():
        for name in (model.name, *model.also):
            for called in (name, name.rpartition("/")[2]):
                if by_folded.setdefault(called.casefold(), model) is not model:
                    raise AssertionError(f"{called} names two models")
    return by_folded


def read(node: Node, folder: Path | None) -> Mapping[str, Any] | None:
    """The content of a config: of a well-known model, of a file relative to `folder`, from the hub's cache of this
    machine, or as it stands in the spec.

    Raises SpecError if there is no such model or file, if it is not a JSON object or does not say its model_type.
    Whether transformers itself has this model, or a hub's code would be needed, is said where the model is built.
    """
    if node.value is None:
        return None
    if isinstance(node.value, str):
        if (model := shipped(node.value, folder)) is not None:
            return model.config
        path = _file(node, folder)
        config, place = read_named_json(path, node), str(path)
    elif isinstance(node.value, dict):
        config, place = node.plain(), node.place
    else:
        raise node.is_error(allowed="the name of a well-known model, the path of a config.json, or its content")
    if not isinstance(config, dict):
        raise SpecError(
            f"the config is {'a list' if isinstance(config, list) else 'a single value'}",
            allowed="the object that transformers writes as config.json",
            place=place,
        )
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise SpecError(
            "the config does not say its model_type",
            allowed="a text such as llama, bert or vit",
            remedy="add the `model_type` that transformers knows it by",
            place=place,
        )
    return config


def _file(node: Node, folder: Path | None) -> Path:
    """The file that a value means: itself, config.json in a folder, or that of a model in the hub's cache."""
    assert isinstance(node.value, str)
    name = node.value
    if folder is None and not looks_like_path(name):
        raise _unknown_model(node, looked_in="")
    path = named_path(node, folder)
    if os.path.isfile(path):  # unlike Path's, these answer False for a name that no file can have
        return path
    if os.path.isfile(path / "config.json"):
        return path / "config.json"
    if os.path.exists(path) or looks_like_path(name):
        return path
    if (cached := find(name)) is not None:
        return cached
    raise _unknown_model(node, looked_in=", in the hub's cache of this machine (HF_HOME), nor a file")


def looks_like_path(name: str) -> bool:
    """Whether a text is written as a path rather than as the name of a model."""
    has_ends = name.startswith((".", "/", "~")) or name.lower().endswith((".json", ".yaml", ".yml", "/"))
    return has_ends or name.count("/") > 1 or "\0" in name or "\\" in name


def _unknown_model(node: Node, looked_in: str) -> SpecError:
    """Names that are near are those of the very same model, misspelt: another one takes other memory."""
    assert isinstance(node.value, str)
    near = near_models(node.value)
    named = f"one of the {len(models())} models of docs/reference/spec.md"
    if not looked_in:
        given, remedy = "the content of a config.json", "send the content of its config.json as model.hf_config"
    else:
        given = "the path of a config.json"
        name = node.value if "/" in node.value else f"PUBLISHER/{node.value.replace(' ', '-')}"
        fetch = f"`hf download {shorten(name, LONGEST_NAME)} config.json`"
        remedy = f"{fetch}, and planner finds it by its name; or write the path of that file in the place of the name"
    if len(near) == 1:
        remedy = f"did you mean `{near[0]}`? For another model: {remedy}"
    return SpecError(
        f"there is no model {node.summary} among those that planner knows{looked_in}",
        allowed=f"{', '.join(near) or named}; or {given}",
        remedy=remedy,
        place=node.place,
    )


def named_path(node: Node, folder: Path | None) -> Path:
    """The file that a spec names, relative to its folder; SpecError for a spec that may not refer to files."""
    assert isinstance(node.value, str)
    if folder is None:
        raise node.error(
            f"is the path {node.summary}, and this spec may not refer to files",
            remedy="send the bundle that `planner spec --bundle` prints",
        )
    return folder / node.value


def read_named_json(path: Path, node: Node) -> Any:
    """The plain data of the JSON file that a value names, within the limits of a spec. Raises SpecError."""
    assert isinstance(node.value, str)
    return node_from_data(read_json(file_text(path, node.value, node.place), str(path)), str(path)).plain()

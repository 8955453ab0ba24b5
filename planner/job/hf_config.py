"""A transformers config, by the path of its file or its model's name, read without transformers.

The architecture is judged where the model is built.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError, shorten
from planner.job import hub_cache, known_models
from planner.job.json_text import read_json
from planner.job.known_models import KnownModel
from planner.job.nodes import Node, node_from_data
from planner.job.size_limits import LONGEST_NAME
from planner.job.text_files import file_text


def read(node: Node, folder: Path | None) -> Mapping[str, Any] | None:
    """The content of a config: of a well-known model, of a file relative to `folder`, from the hub's cache of this
    machine, or as it stands in the spec.

    Raises SpecError if there is no such model or file, if it is no JSON object or does not say its model_type. Whether
    transformers itself has this model, or a hub's code would be needed, is said where the model is built.
    """
    if node.value is None:
        return None
    if isinstance(node.value, str):
        if (found := shipped(node.value, folder)) is not None:
            return found.config
        path = _file(node, folder)
        config, place = content_of(path, node), str(path)
    elif isinstance(node.value, dict):
        config, place = node.plain(), node.place
    else:
        raise node.is_error(allowed="the name of a well-known model, the path of a config.json, or its content")
    return _check_config(config, place)


def shipped(name: str, folder: Path | None) -> KnownModel | None:
    """The well-known model of that name, unless a file or folder of the spec is called so."""
    found = known_models.by_name(name)
    return None if found is None or (folder is not None and os.path.exists(folder / name)) else found


def _file(node: Node, folder: Path | None) -> Path:
    """The file that a value means: itself, config.json in a folder, or that of a model in the hub's cache."""
    assert isinstance(node.value, str)
    name = node.value
    if folder is None and not looks_like_path(name):
        raise _unknown_model(node, looked_in="")
    path = path_of(node, folder)
    if os.path.isfile(path):  # unlike Path's, these answer False for a name that no file can have
        return path
    if os.path.isfile(path / "config.json"):
        return path / "config.json"
    if os.path.exists(path) or looks_like_path(name):
        return path
    if (cached := hub_cache.find(name)) is not None:
        return cached
    raise _unknown_model(node, looked_in=", in the hub's cache of this machine (HF_HOME), nor a file")


def looks_like_path(name: str) -> bool:
    """Whether a text is written as a path rather than as the name of a model."""
    suffixed = name.lower().endswith((".json", ".yaml", ".yml"))
    return (
        suffixed
        or "\0" in name
        or name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or name.endswith("/")
        or "\\" in name
    )


def _unknown_model(node: Node, looked_in: str) -> SpecError:
    """Names that are near are those of the very same model, misspelt: another one takes other memory."""
    assert isinstance(node.value, str)
    near = known_models.near(node.value)
    named = f"one of the {len(known_models.models())} models of docs/reference.md"
    if not looked_in:
        given, found = "the content of a config.json", "send the content of its config.json as model.hf_config"
    else:
        given, name = "the path of a config.json", node.value if "/" in node.value else f"PUBLISHER/{node.value}"
        fetch = f"`hf download {shorten(name, LONGEST_NAME)} config.json`"
        found = f"{fetch}, and planner finds it by its name; or write the path of that file in the place of the name"
    return SpecError(
        f"there is no model {node.summary} among those that planner knows{looked_in}",
        allowed=f"{', '.join(near) or named}; or {given}",
        remedy=f"did you mean `{near[0]}`? For another model: {found}" if len(near) == 1 else found,
        place=node.place,
    )


def path_of(node: Node, folder: Path | None) -> Path:
    """The file that a spec names, relative to its folder; SpecError for a spec that may not refer to files."""
    assert isinstance(node.value, str)
    if folder is None:
        raise node.error(
            f"is the path {node.summary}, and this spec may not refer to files",
            remedy="send the bundle that `planner spec --bundle` prints",
        )
    return folder / node.value


def content_of(path: Path, node: Node) -> Any:
    """The plain data of the JSON file that a value names, within the limits of a spec. Raises SpecError."""
    assert isinstance(node.value, str)
    return node_from_data(read_json(file_text(path, node.value, node.place), str(path)), str(path)).plain()


def _check_config(config: Any, place: str) -> Mapping[str, Any]:
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

"""A transformers config.json, read without transformers; the architecture is judged where the model is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.json_text import read_json
from planner.job.nodes import Node, node_from_data
from planner.job.text_files import file_text


def read(node: Node, folder: Path | None) -> Mapping[str, Any] | None:
    """The content of a config: from a file relative to `folder`, or as it stands in the spec.

    Raises SpecError if there is no such file, if it is no JSON object or does not say its model_type. Whether
    transformers itself has this model, or a hub's code would be needed, is said where the model is built.
    """
    if node.value is None:
        return None
    if isinstance(node.value, str):
        path = path_of(node, folder)
        config, place = content_of(path, node), str(path)
    elif isinstance(node.value, dict):
        config, place = node.plain(), node.place
    else:
        raise node.is_error(allowed="the path of a config.json, or its content as a mapping")
    return _check_config(config, place)


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

"""The job that a person names: a spec, a bundle, a model by its name, config or folder, with words and settings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import hf_config, shorthand
from planner.job.json_text import file_text, read_json
from planner.job.loading import document_of, list_choices, load_node
from planner.job.nodes import Node, did_you_mean, node_from_data
from planner.job.schema import ALL_LINEAR, Job
from planner.job.shorthand import Setting, Shorthand, setting


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """The job, and sentences on how it was read."""

    job: Job
    supposed: tuple[str, ...] = ()
    """What is not given, and what is assumed."""
    chosen: tuple[str, ...] = ()
    """What is given ambiguously, and what is assumed."""


ADAPTER_FILE = "adapter_config.json"
_MODEL = "model.hf_config"
_PEFT = "trainer.peft of a spec (--from-peft), which takes all that peft takes"
_RECIPES = {
    "base_model": "axolotl train",
    "stage": "llamafactory-cli train",
    "finetuning_type": "llamafactory-cli train",
    "model_name_or_path": "trl sft --config",
    "tokenizer": "tune run lora_finetune_single_device --config",
}
"""Keys that recipes of other tools have at their top and a spec has not, with the command that takes them."""


STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenJob:
    """What stands on a command line."""

    named: str = ""
    """The path of a file, the name of a model, or `-`."""
    standard_input: str = ""
    """Its text, where `named` is `-`."""
    files: Sequence[Setting] = ()
    """What options put into it as it is, before the words."""
    words: Shorthand = field(default_factory=Shorthand)
    settings: Sequence[str | Setting] = ()
    """`key=value`, each, or what that comes to."""


def read(given: GivenJob, folder: Path | None) -> ImportedJob:
    """The job; relative paths of options start at `folder`, those of a spec at its own. Raises SpecError.

    Without a folder no file is read: then `named` is a model that planner knows or `-`.
    """
    try:
        return _read_given(given, folder)
    except SpecError as error:
        raise shorthand.in_options(error) from None


def _read_given(given: GivenJob, folder: Path | None) -> ImportedJob:
    settings = [shorthand.parse(written) if isinstance(written, str) else written for written in given.settings]
    text, source = _text(given, folder)
    model = _Model(given.named, "the model") if text is None else _model_of(text, source, given.named)
    if text is None or model is not None:
        assert model is not None
        return _of_model(model, given, settings, folder)
    document, start = document_of(text, source, folder if given.named == STANDARD_INPUT else Path(given.named).parent)
    _refuse_recipe(document, given.named)
    document = shorthand.with_settings(document, given.files, start)
    words = shorthand.of_spec(given.words, document, [each.path for each in settings])
    document = shorthand.with_settings(document, [*words.settings, *settings], start)
    return _loaded(document, start, words.supposed)


def _refuse_recipe(document: Node, named: str) -> None:
    """Raises SpecError for the recipe of another tool, with the command that plans it."""
    keys = document.mapping("a mapping with model, train, parallel, cluster, ...")
    for key, command in _RECIPES.items():
        if key in keys:
            raise _recipe_error(named, command, keys[key].key_place or document.place)


def _recipe_error(named: str, command: str, place: str = "") -> SpecError:
    return SpecError(
        f"{named} is a recipe of another tool, which planner does not read",
        allowed="a job spec, a bundle, or a model",
        remedy=f"run the tool itself, on paper: planner run -- {command} {named}",
        place=place,
    )


def is_model(named: str) -> bool:
    """Whether what stands in the place of a job is a model's name, its folder or its config.json, and no spec."""
    if named == STANDARD_INPUT or not named:
        return False
    if os.path.isfile(named):
        with contextlib.suppress(SpecError):
            data = read_json(file_text(Path(named), named), named) if named.lower().endswith(".json") else None
            return isinstance(data, dict) and "model_type" in data
        return False
    return os.path.isdir(named) or not hf_config.looks_like_path(named)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that no spec describes."""

    name: str
    """Or the path of its config."""
    place: str
    adapter: Mapping[str, Any] | None = None


def _text(given: GivenJob, folder: Path | None) -> tuple[str | None, str]:
    """What a person's word leads to, and how to call it; no text for the name of a model."""
    named = given.named
    if named == STANDARD_INPUT:
        return given.standard_input, "standard input"
    if folder is None:
        return None, named
    path = folder / named
    if named.endswith(".toml"):
        raise _recipe_error(named, "torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file")
    if os.path.isdir(path):
        for name in (ADAPTER_FILE, "config.json"):
            if os.path.isfile(path / name):
                return file_text(path / name, f"{named}/{name}"), f"{named}/{name}"
        raise SpecError(
            f"{named} is a folder without a config.json or an {ADAPTER_FILE}",
            allowed="a job spec, a bundle, a model's folder, or the name of a model",
            remedy="give the file",
        )
    if not os.path.exists(path):
        if not hf_config.looks_like_path(named):
            return None, named
        neighbours: list[str] = []
        with contextlib.suppress(OSError):
            neighbours = sorted(os.listdir(path.parent))[:1000]
        raise SpecError(f"there is no file {named}", remedy=did_you_mean(path.name, neighbours))
    return file_text(path, named), named


def _model_of(text: str, source: str, named: str) -> _Model | None:
    """The model of a config.json or an adapter's; None for a spec or a bundle."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = read_json(text, source)
    except SpecError:
        return None  # a YAML mapping in braces, or broken: the reader of specs says where
    if isinstance(data, dict) and "model_type" in data:
        return _Model(source, "the model") if named != STANDARD_INPUT else None
    if isinstance(data, dict) and "peft_type" in data:
        node = node_from_data(data, source)
        return _Model(data.get("base_model_name_or_path") or "", source, _read_adapter(data, node))
    return None


def _read_adapter(config: Mapping[str, Any], node: Node) -> Mapping[str, Any]:
    """`model.adapter` of a spec as an adapter_config.json says it. Raises SpecError for other adapters than LoRA."""
    if config["peft_type"] != "LORA":
        raise node.fault("peft_type", f"is {config['peft_type']}", allowed="LORA", remedy=f"write it in {_PEFT}")
    targets = config.get("target_modules")
    adapter = {
        "kind": "dora" if config.get("use_dora") else "lora",
        **{name: config[name] for name in ("r", "lora_alpha", "lora_dropout") if config.get(name)},
    }
    if targets is None:
        return adapter
    names = [ALL_LINEAR] if str(targets).lower() == ALL_LINEAR else targets
    if not isinstance(names, list):
        allowed = "a list of names, as q_proj and v_proj, or all-linear"
        raise node.fault("target_modules", "is a pattern", allowed=allowed, remedy=f"write it in {_PEFT}")
    return {**adapter, "target_modules": sorted(names)}


def _of_model(model: _Model, given: GivenJob, settings: list[Setting], folder: Path | None) -> ImportedJob:
    node = node_from_data(model.name, model.place, _MODEL)
    config = hf_config.read(node, folder)
    assert config is not None
    name = os.path.basename(os.path.dirname(model.name) if model.name.endswith(".json") else model.name) or "model"
    document = Node({}, "", "the options")
    facts = [setting("metadata.name", name.lower(), "the model"), setting(_MODEL, config, model.name)]
    if model.adapter is not None:
        facts.append(setting("model.adapter", model.adapter, model.place))
    document = shorthand.with_settings(document, [*facts, *given.files], folder)
    meaning = shorthand.of_model(given.words, document, config, [each.path for each in settings])
    document = shorthand.with_settings(document, [*meaning.settings, *settings], folder)
    if not document.nearest_to("cluster.gpu").path.startswith("cluster.gpu"):
        raise SpecError(
            f"nothing says on which GPU {model.name} is trained",
            allowed="--gpus 4xH100, or --gpu H100 beside --gpus 4",
            remedy=f"write --gpus {given.words.gpus or 4}xH100",
        )
    supposed = [*hf_config.describe_mirror(model.name, folder), *meaning.supposed]
    return _loaded(document, folder, supposed)


def _loaded(document: Node, folder: Path | None, supposed: Sequence[str]) -> ImportedJob:
    job = load_node(document, folder)
    return ImportedJob(job, tuple(dict.fromkeys(supposed)), tuple(list_choices(document, folder)))
